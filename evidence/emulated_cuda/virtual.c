/* Virtual memory: physical memory that no process owns, mapped where one has reserved.

   Physical memory is a block that is there as long as a process has a handle of it or
   maps it, or a descriptor leads to it, perhaps in a message that nobody has received.
   The descriptor is an open file description of the device's file at the position of the
   block's row, with a lock on the byte there: so the kernel knows when it is gone. */

#define _GNU_SOURCE
#include "emulated.h"

#include <cuda.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_HANDLES = 1024, MAX_MAPPINGS = 1024 };

#define CALL() do { \
    cudaError_t refused = enter(__func__); \
    if (refused) return (CUresult)refused; \
} while (0)

/* A handle is the place of its row here, from 1 on. It stays while it is mapped, since
   cuMemRetainAllocationHandle gives it out again. */
static struct handle {
    uint64_t serial; /* 0: the row is not used */
    int block, references;
} handles[MAX_HANDLES];

static struct mapping {
    uintptr_t start;
    size_t size; /* 0: the row is not used */
    int handle, accessible;
} mappings[MAX_MAPPINGS];

static struct reservation {
    uintptr_t start;
    size_t size;
} reservations[MAX_MAPPINGS];

/* What is there */

static int is_locked(int device, int row) {
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = row, .l_len = 1};
    int file = open_device(device);
    int known = file >= 0 && !fcntl(file, F_OFD_GETLK, &byte);
    if (file >= 0) close(file);
    return !known || byte.l_type != F_UNLCK;
}

void release_unreferenced(void) {
    for (int n = 0; n < MAX_BLOCKS; n++) {
        struct block *block = &machine->blocks[n];
        if (!block->serial || block->owner != EVERYBODY || block->opens) continue;
        if (is_locked(block->device, n)) continue;
        char *memory = device_memory(block->device);
        if (memory) memset(memory + block->offset, POISON, block->size);
        block->serial = 0;
    }
}

static int is_mapped(int handle) {
    for (int n = 0; n < MAX_MAPPINGS; n++)
        if (mappings[n].size && mappings[n].handle == handle) return 1;
    return 0;
}

/* Say whether this process has the block of a handle, after that handle has changed. */
static void settle(int handle) {
    int block = handles[handle].block;
    if (!handles[handle].references && !is_mapped(handle)) handles[handle].serial = 0;
    machine->blocks[block].opens &= ~(1ull << self);
    for (int n = 0; n < MAX_HANDLES; n++)
        if (handles[n].serial && handles[n].block == block)
            machine->blocks[block].opens |= 1ull << self;
}

static CUresult new_handle(int block, CUmemGenericAllocationHandle *handle) {
    for (int n = 0; n < MAX_HANDLES; n++)
        if (!handles[n].serial) {
            handles[n] = (struct handle){machine->blocks[block].serial, block, 1};
            settle(n);
            *handle = n + 1;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static int held(CUmemGenericAllocationHandle handle) {
    int known = handle && handle <= MAX_HANDLES && handles[handle - 1].references;
    return known ? (int)handle - 1 : NOBODY;
}

static struct mapping *mapping_at(uintptr_t pointer) {
    for (int n = 0; n < MAX_MAPPINGS; n++)
        if (pointer >= mappings[n].start && pointer < mappings[n].start + mappings[n].size)
            return &mappings[n];
    return NULL;
}

/* For copies */

int locate_mapped(uintptr_t pointer, size_t bytes, int *device, size_t *offset) {
    struct mapping *found = mapping_at(pointer);
    if (!found || !found->accessible || pointer + bytes > found->start + found->size)
        return 0;
    struct block *block = &machine->blocks[handles[found->handle].block];
    *device = block->device;
    *offset = block->offset + pointer - found->start;
    return 1;
}

size_t contiguous(const void *pointer, size_t size) {
    struct mapping *found = mapping_at((uintptr_t)pointer);
    size_t rest = found ? found->start + found->size - (uintptr_t)pointer : size;
    return rest < size ? rest : size;
}

/* Physical memory */

static CUresult check_properties(const CUmemAllocationProp *wanted, int *device) {
    if (wanted->type != CU_MEM_ALLOCATION_TYPE_PINNED
        || wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (wanted->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return (CUresult)physical_device(wanted->location.id, device);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *wanted,
                                       CUmemAllocationGranularity_flags option) {
    CALL();
    int device;
    (void)option; /* both are the same */
    *granularity = BLOCK;
    return check_properties(wanted, &device);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *wanted, unsigned long long flags) {
    CALL();
    int device;
    CUresult error = check_properties(wanted, &device);
    if (error) return error;
    if (flags || !size || size % BLOCK) return CUDA_ERROR_INVALID_VALUE;
    lock();
    int row = make_block(device, size);
    error = row == NOBODY ? CUDA_ERROR_OUT_OF_MEMORY : new_handle(row, handle);
    if (!error) {
        machine->blocks[row].owner = EVERYBODY;
        machine->blocks[row].exportable = wanted->requestedHandleTypes;
    } else if (row != NOBODY) machine->blocks[row].serial = 0;
    unlock();
    return error;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    CALL();
    lock();
    int row = held(handle);
    if (row != NOBODY) {
        handles[row].references--;
        settle(row);
    }
    unlock();
    return row == NOBODY ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer) {
    CALL();
    lock();
    struct mapping *found = mapping_at((uintptr_t)pointer);
    if (found) {
        handles[found->handle].references++;
        *handle = found->handle + 1;
    }
    unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Addresses */

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment,
                             CUdeviceptr wanted, unsigned long long flags) {
    CALL();
    if (flags || !size || size % BLOCK || alignment || wanted)
        return CUDA_ERROR_INVALID_VALUE;
    void *start = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    lock();
    int n = 0;
    while (n < MAX_MAPPINGS && reservations[n].size) n++;
    if (n < MAX_MAPPINGS) reservations[n] = (struct reservation){(uintptr_t)start, size};
    unlock();
    if (n == MAX_MAPPINGS) munmap(start, size);
    *pointer = (CUdeviceptr)start;
    return n < MAX_MAPPINGS ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static int is_free(uintptr_t start, size_t size) {
    for (int n = 0; n < MAX_MAPPINGS; n++)
        if (mappings[n].size && mappings[n].start < start + size
            && start < mappings[n].start + mappings[n].size)
            return 0;
    return 1;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    CALL();
    struct reservation *found = NULL;
    lock();
    for (int n = 0; n < MAX_MAPPINGS; n++)
        if (reservations[n].size == size && reservations[n].start == pointer)
            found = is_free(pointer, size) ? &reservations[n] : NULL;
    if (found) found->size = 0;
    unlock();
    if (found) munmap((void *)pointer, size);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static int is_reserved(uintptr_t start, size_t size) {
    for (int n = 0; n < MAX_MAPPINGS; n++)
        if (reservations[n].start <= start
            && start + size <= reservations[n].start + reservations[n].size)
            return 1;
    return 0;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CALL();
    CUresult error = CUDA_ERROR_INVALID_VALUE;
    int n = 0;
    lock();
    int row = held(handle);
    while (n < MAX_MAPPINGS && mappings[n].size) n++;
    if (!flags && !offset && row != NOBODY && n < MAX_MAPPINGS && size
        && size == machine->blocks[handles[row].block].size
        && is_reserved(pointer, size) && is_free(pointer, size)) {
        mappings[n] = (struct mapping){pointer, size, row, 0};
        error = CUDA_SUCCESS;
    }
    unlock();
    return error;
}

/* Like cudaFree it waits for nothing: what is pending is the caller's business. */
CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
    CALL();
    lock();
    struct mapping *found = mapping_at(pointer);
    if (found && (found->start != pointer || found->size != size)) found = NULL;
    if (found) {
        found->size = 0;
        settle(found->handle);
    }
    unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *wanted,
                        size_t count) {
    CALL();
    int device;
    uintptr_t end = pointer;
    struct mapping *found;
    if (count != 1 || physical_device(wanted->location.id, &device))
        return CUDA_ERROR_INVALID_VALUE;
    lock();
    while (end < pointer + size && (found = mapping_at(end))
           && machine->blocks[handles[found->handle].block].device == device)
        end = found->start + found->size;
    for (int n = 0; end == pointer + size && n < MAX_MAPPINGS; n++)
        if (mappings[n].start >= pointer && mappings[n].start < end)
            mappings[n].accessible = wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    unlock();
    return end == pointer + size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Descriptors */

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type,
                                      unsigned long long flags) {
    CALL();
    int file = -1;
    lock();
    int row = held(handle), block = row == NOBODY ? 0 : handles[row].block;
    struct flock byte = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = block, .l_len = 1};
    if (row != NOBODY && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        && machine->blocks[block].exportable) {
        file = open_device(machine->blocks[block].device);
        if (file >= 0 && (fcntl(file, F_OFD_SETLK, &byte) || lseek(file, block, SEEK_SET) < 0)) {
            close(file);
            file = -1;
        }
    }
    unlock();
    *(int *)shareable = file;
    return file < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static int is_of_device(int device, int file) {
    struct stat one, other;
    int same = open_device(device);
    int found = same >= 0 && !fstat(same, &one) && !fstat(file, &other)
        && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
    if (same >= 0) close(same);
    return found;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type) {
    CALL();
    int file = (int)(uintptr_t)shareable, device = 0, all[MAX_DEVICES], visible = 0;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    while (device < machine->devices && !is_of_device(device, file)) device++;
    off_t row = device < machine->devices ? lseek(file, 0, SEEK_CUR) : -1;
    for (int n = visible_devices(all); n--;) visible |= all[n] == device;
    if (row < 0 || row >= MAX_BLOCKS) return CUDA_ERROR_INVALID_VALUE;
    if (!visible) return CUDA_ERROR_NOT_SUPPORTED;
    lock();
    struct block *block = &machine->blocks[row];
    CUresult error = block->serial && block->owner == EVERYBODY
        ? new_handle((int)row, handle) : CUDA_ERROR_INVALID_VALUE;
    unlock();
    return error;
}
