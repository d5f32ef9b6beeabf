/* Device memory: blocks, the allocations that are carved from them, and their handles.

   A device pointer is an address that nothing is mapped at, in one of two ranges that
   each process reserves for a device: its own memory, and what it opened. So a pointer
   means something in its process only, and a host that follows one is killed. */

#define _GNU_SOURCE
#include "emulated.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OWN, OPENED, RANGES, MAX_OPENED = 4096 };

static uintptr_t ranges[RANGES][MAX_DEVICES];

/* What this process has open: each allocation, and how often. */
static struct opened {
    uint64_t serial, block_serial;
    int block, opens;
    uintptr_t pointer;
} opened[MAX_OPENED];

struct handle {
    char magic[8];
    uint64_t serial, block_serial;
    int allocation, block;
};
static const char MAGIC[8] = "emu-mem";

static uintptr_t range_of(int kind, int device) {
    uintptr_t *range = &ranges[kind][device];
    if (!*range) {
        void *found = mmap(NULL, machine->memory, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        *range = found == MAP_FAILED ? 0 : (uintptr_t)found;
    }
    return *range;
}

/* Blocks */

static struct block *first_overlap(int device, size_t start, size_t size) {
    for (int n = 0; n < MAX_BLOCKS; n++) {
        struct block *block = &machine->blocks[n];
        if (block->serial && block->owner != NOBODY && block->device == device
            && block->offset < start + size && start < block->offset + block->size)
            return block;
    }
    return NULL;
}

static int vacant_block(void) {
    for (int n = 0; n < MAX_BLOCKS; n++)
        if (!machine->blocks[n].serial) return n;
    return NOBODY;
}

size_t memory_used(int device) {
    size_t used = 0;
    release_unreferenced();
    for (int n = 0; n < MAX_BLOCKS; n++)
        if (machine->blocks[n].serial && machine->blocks[n].device == device)
            used += machine->blocks[n].size; /* an orphan counts while it is open */
    for (int n = 0; n < MAX_PROCESSES; n++)
        used += machine->processes[n].contexts >> device & 1 ? CONTEXT : 0;
    return used;
}

int make_block(int device, size_t size) {
    int row = vacant_block();
    size_t used = memory_used(device), start = 0;
    struct block *other;
    if (row == NOBODY || size > machine->memory - (used < machine->memory ? used : machine->memory))
        return NOBODY;
    while ((other = first_overlap(device, start, size))) start = other->offset + other->size;
    if (start + size > machine->memory) return NOBODY;
    machine->blocks[row] = (struct block){
        .device = device, .owner = self, .offset = start, .size = size};
    machine->blocks[row].serial = new_serial();
    return row;
}

static void free_block(struct block *block) {
    block->owner = NOBODY;
    if (!block->opens) block->serial = 0;
}

/* Allocations */

static struct allocation *next_in(int block, size_t from) {
    struct allocation *next = NULL;
    for (int n = 0; n < MAX_ALLOCATIONS; n++) {
        struct allocation *each = &machine->allocations[n];
        if (each->serial && each->block == block && each->offset + each->size > from
            && (!next || each->offset < next->offset))
            next = each;
    }
    return next;
}

static int gap_in(int block, size_t size, size_t *offset) {
    struct allocation *next;
    *offset = 0;
    while ((next = next_in(block, *offset))) {
        if (*offset + size <= next->offset) return 1;
        *offset = (next->offset + next->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return *offset + size <= machine->blocks[block].size;
}

/* A small allocation shares a block of 2 MiB with others of its process. */
static int block_for(int device, size_t size, size_t *offset) {
    *offset = 0;
    if (size >= SMALL) return make_block(device, (size + BLOCK - 1) / BLOCK * BLOCK);
    for (int n = 0; n < MAX_BLOCKS; n++) {
        struct block *block = &machine->blocks[n];
        if (block->serial && block->owner == self && block->device == device
            && block->size == BLOCK && next_in(n, 0) && next_in(n, 0)->size < SMALL
            && gap_in(n, size, offset))
            return n;
    }
    *offset = 0;
    return make_block(device, BLOCK);
}

static struct allocation *vacant_allocation(void) {
    for (int n = 0; n < MAX_ALLOCATIONS; n++)
        if (!machine->allocations[n].serial) return &machine->allocations[n];
    return NULL;
}

static cudaError_t allocate(int device, size_t size, uintptr_t *pointer) {
    struct allocation *made = vacant_allocation();
    size_t offset;
    int block = made ? block_for(device, size, &offset) : NOBODY;
    if (block == NOBODY) return cudaErrorMemoryAllocation;
    *made = (struct allocation){.block = block, .offset = offset, .size = size};
    made->serial = new_serial();
    *pointer = range_of(OWN, device) + machine->blocks[block].offset + offset;
    return cudaSuccess;
}

static void release(struct allocation *allocation) {
    struct block *block = &machine->blocks[allocation->block];
    char *memory = device_memory(block->device);
    if (memory)
        memset(memory + block->offset + allocation->offset, POISON, allocation->size);
    allocation->serial = 0;
    if (!next_in(allocation->block, 0)) free_block(block);
}

void release_process_memory(int process) {
    for (int n = 0; n < MAX_ALLOCATIONS; n++) {
        struct allocation *each = &machine->allocations[n];
        if (each->serial && machine->blocks[each->block].owner == process) release(each);
    }
    for (int n = 0; n < MAX_BLOCKS; n++) {
        struct block *block = &machine->blocks[n];
        block->opens &= ~(1ull << process);
        if (block->serial && block->owner == NOBODY && !block->opens) block->serial = 0;
    }
}

/* Pointers */

static struct block *block_at(int kind, int device, size_t offset) {
    for (int n = 0; n < MAX_BLOCKS; n++) {
        struct block *block = &machine->blocks[n];
        int ours = kind == OWN ? block->owner == self
            : block->owner != EVERYBODY && block->opens >> self & 1;
        if (block->serial && ours && block->device == device && block->offset <= offset
            && offset < block->offset + block->size)
            return block;
    }
    return NULL;
}

static struct block *block_of(uintptr_t pointer, int *kind, size_t *within) {
    for (int device = 0; device < machine->devices; device++)
        for (*kind = OWN; *kind < RANGES; ++*kind) {
            uintptr_t start = ranges[*kind][device];
            if (!start || pointer < start || pointer >= start + machine->memory) continue;
            struct block *block = block_at(*kind, device, pointer - start);
            if (block) *within = pointer - start - block->offset;
            return block;
        }
    return NULL;
}

/* What an own pointer lies in is the allocation, what an opened one does the block. */
static struct allocation *allocation_at(uintptr_t pointer) {
    int kind;
    size_t within;
    struct block *block = block_of(pointer, &kind, &within);
    if (!block || kind != OWN) return NULL;
    struct allocation *found = next_in((int)(block - machine->blocks), within);
    return found && found->offset <= within ? found : NULL;
}

static uintptr_t address_of(struct allocation *allocation) {
    struct block *block = &machine->blocks[allocation->block];
    return ranges[OWN][block->device] + block->offset + allocation->offset;
}

cudaError_t address_range(uintptr_t pointer, uintptr_t *base, size_t *size) {
    int kind;
    size_t within;
    struct allocation *own = allocation_at(pointer);
    struct block *block = block_of(pointer, &kind, &within);
    if (own) {
        *base = address_of(own);
        *size = own->size;
        return cudaSuccess;
    }
    if (!block || kind == OWN) return cudaErrorInvalidValue;
    *base = pointer - within;
    *size = block->size;
    return cudaSuccess;
}

cudaError_t locate(uintptr_t pointer, size_t bytes, int *device, size_t *offset) {
    uintptr_t base;
    size_t size, within;
    int kind;
    if (locate_mapped(pointer, bytes, device, offset)) return cudaSuccess;
    if (address_range(pointer, &base, &size) || pointer + bytes > base + size)
        return cudaErrorInvalidValue;
    struct block *block = block_of(pointer, &kind, &within);
    *device = block->device;
    *offset = block->offset + within;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t size) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    *pointer = NULL;
    if (!size) return cudaSuccess;
    lock();
    error = range_of(OWN, device) ? allocate(device, size, (uintptr_t *)pointer)
                                  : cudaErrorMemoryAllocation;
    unlock();
    return error;
}

/* It waits for nothing: no manual says that it does. */
cudaError_t cudaFree(void *pointer) {
    ENTER();
    if (!pointer) return cudaSuccess;
    lock();
    struct allocation *found = allocation_at((uintptr_t)pointer);
    int base = found && address_of(found) == (uintptr_t)pointer;
    if (base) release(found);
    unlock();
    return base ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    lock();
    size_t used = memory_used(device);
    unlock();
    *total = machine->memory;
    *available = used < *total ? *total - used : 0;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                     const void *pointer) {
    ENTER();
    size_t offset;
    memset(attributes, 0, sizeof *attributes);
    lock();
    if (!locate((uintptr_t)pointer, 1, &attributes->device, &offset)) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = (void *)pointer;
    }
    unlock();
    return cudaSuccess;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    cudaError_t error = enter(__func__);
    if (error) return (CUresult)error;
    uintptr_t found = 0;
    lock();
    error = address_range((uintptr_t)pointer, &found, size);
    unlock();
    *base = found;
    return (CUresult)error;
}

/* Host memory that a device can reach is host memory here. */

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    ENTER();
    (void)flags;
    return (*pointer = malloc(size)) ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *pointer) {
    ENTER();
    free(pointer);
    return cudaSuccess;
}

/* Handles: they name an allocation, and opening one maps the block in which it lies */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    ENTER();
    memset(handle, 0, sizeof *handle);
    struct handle made = {.serial = 0};
    lock();
    struct allocation *found = allocation_at((uintptr_t)pointer);
    if (found) {
        memcpy(made.magic, MAGIC, sizeof MAGIC);
        made.serial = found->serial;
        made.allocation = (int)(found - machine->allocations);
        made.block = found->block;
        made.block_serial = machine->blocks[found->block].serial;
    }
    unlock();
    memcpy(handle->reserved, &made, sizeof made);
    return found ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t exported(struct handle *handle, struct allocation **allocation) {
    if (memcmp(handle->magic, MAGIC, sizeof MAGIC)) return cudaErrorInvalidValue;
    *allocation = &machine->allocations[handle->allocation];
    if ((*allocation)->serial != handle->serial) return cudaErrorMapBufferObjectFailed;
    if (machine->blocks[handle->block].owner == self) return cudaErrorDeviceUninitialized;
    return cudaSuccess;
}

static struct opened *opened_row(uint64_t serial) {
    for (int n = 0; n < MAX_OPENED; n++)
        if (opened[n].serial == serial) return &opened[n];
    return NULL;
}

/* An allocation that is open already is counted once more and has the same pointer. */
static cudaError_t map_allocation(struct handle *handle, uintptr_t *pointer) {
    struct allocation *allocation;
    cudaError_t error = exported(handle, &allocation);
    if (error) return error;
    struct block *block = &machine->blocks[handle->block];
    struct opened *row = opened_row(handle->serial);
    if (!row && !(row = opened_row(0))) return cudaErrorMapBufferObjectFailed;
    if (!row->serial) {
        uintptr_t start = range_of(OPENED, block->device);
        if (!start || !device_memory(block->device)) return cudaErrorMapBufferObjectFailed;
        *row = (struct opened){handle->serial, handle->block_serial, handle->block, 0,
                               start + block->offset + allocation->offset};
        block->opens |= 1ull << self;
    }
    row->opens++;
    *pointer = row->pointer;
    return cudaSuccess;
}

/* It opens memory of a device that is not visible here, too, as the manual says. */
cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle,
                                 unsigned flags) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    struct handle wanted;
    memcpy(&wanted, handle.reserved, sizeof wanted);
    if (error || flags != cudaIpcMemLazyEnablePeerAccess)
        return error ? error : cudaErrorInvalidValue;
    lock();
    error = map_allocation(&wanted, (uintptr_t *)pointer);
    unlock();
    return error;
}

static int is_block_open(int block, uint64_t serial) {
    for (int n = 0; n < MAX_OPENED; n++)
        if (opened[n].serial && opened[n].block == block
            && opened[n].block_serial == serial)
            return 1;
    return 0;
}

static void unmap(struct opened *row) {
    struct block *block = &machine->blocks[row->block];
    row->serial = 0;
    if (is_block_open(row->block, row->block_serial)) return;
    block->opens &= ~(1ull << self);
    if (block->owner == NOBODY && !block->opens) block->serial = 0;
}

/* Like cudaFree it waits for nothing. */
cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    ENTER();
    struct opened *found = NULL;
    lock();
    for (int n = 0; n < MAX_OPENED; n++)
        if (opened[n].serial && opened[n].pointer == (uintptr_t)pointer) found = &opened[n];
    if (found && !--found->opens) unmap(found);
    unlock();
    return found ? cudaSuccess : cudaErrorInvalidValue;
}

/* The same by the API of the driver */

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    return (CUresult)cudaMalloc((void **)pointer, size);
}

CUresult cuMemFree_v2(CUdeviceptr pointer) { return (CUresult)cudaFree((void *)pointer); }

CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    return (CUresult)cudaMemGetInfo(available, total);
}

CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device) {
    CUresult refused = cuInit(0);
    (void)device; /* all of a machine have the same */
    *total = refused ? 0 : machine->memory;
    return refused;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    return (CUresult)cudaIpcGetMemHandle((cudaIpcMemHandle_t *)handle, (void *)pointer);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle,
                               unsigned flags) {
    cudaIpcMemHandle_t same;
    memcpy(&same, &handle, sizeof same);
    return (CUresult)cudaIpcOpenMemHandle((void **)pointer, same, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    return (CUresult)cudaIpcCloseMemHandle((void *)pointer);
}
