/* Devices: which of them a process sees, which one is current, and contexts on them. */

#define _GNU_SOURCE
#include "emulated.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 16 };

static _Thread_local int contexts[DEPTH]; /* physical devices, the current one last */
static _Thread_local int depth;

static void write_uuid(int device, char *bytes) {
    memset(bytes, 0, 16);
    snprintf(bytes, 16, "emulated-%d", device);
}

static int by_uuid(const char *name, size_t length) {
    for (int device = 0; device < machine->devices; device++) {
        char bytes[16], text[64] = "GPU-";
        write_uuid(device, bytes);
        for (int n = 0; n < 16; n++)
            sprintf(text + strlen(text), n == 4 || n == 6 || n == 8 || n == 10
                    ? "-%02x" : "%02x", (unsigned char)bytes[n]);
        if (length <= strlen(text) && !strncmp(name, text, length)) return device;
    }
    return NOBODY;
}

static int named(const char *name, size_t length) {
    if (!strncmp(name, "GPU-", 4)) return by_uuid(name, length);
    char *end;
    long device = strtol(name, &end, 10);
    return end == name + length && length && device >= 0 && device < machine->devices
        ? (int)device : NOBODY;
}

/* CUDA_VISIBLE_DEVICES chooses and orders; the first name that is none ends the list. */
int visible_devices(int *physical) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!text) {
        while (count < machine->devices) physical[count] = count, count++;
        return count;
    }
    while (*text && count < MAX_DEVICES) {
        size_t length = strcspn(text, ",");
        if ((physical[count] = named(text, length)) == NOBODY) break;
        count++;
        text += length + (text[length] == ',');
    }
    return count;
}

cudaError_t physical_device(int visible, int *device) {
    int all[MAX_DEVICES];
    if (visible < 0 || visible >= visible_devices(all)) return cudaErrorInvalidDevice;
    *device = all[visible];
    return cudaSuccess;
}

static int visible_device(int physical) {
    int all[MAX_DEVICES], count = visible_devices(all);
    for (int n = 0; n < count; n++)
        if (all[n] == physical) return n;
    return NOBODY;
}

/* Contexts */

cudaError_t make_context(int device) {
    struct process *process = &machine->processes[self];
    lock();
    int room = process->contexts >> device & 1
        || memory_used(device) + CONTEXT <= machine->memory;
    if (room) process->contexts |= 1u << device;
    unlock();
    if (!room) return cudaErrorMemoryAllocation;
    return device_memory(device) ? cudaSuccess : cudaErrorInitializationError;
}

int current_device(void) {
    int all[MAX_DEVICES];
    if (depth) return contexts[depth - 1];
    return visible_devices(all) ? all[0] : NOBODY;
}

/* The current device, with a context on it, as every use of memory makes one. */
cudaError_t use_device(int *device) {
    *device = current_device();
    if (*device == NOBODY) return cudaErrorNoDevice;
    return make_context(*device);
}

static void make_current(int device) {
    if (!depth) depth = 1;
    contexts[depth - 1] = device;
}

cudaError_t cudaGetDeviceCount(int *count) {
    ENTER();
    int all[MAX_DEVICES];
    *count = visible_devices(all);
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int *device) {
    ENTER();
    *device = visible_device(current_device());
    return *device == NOBODY ? cudaErrorNoDevice : cudaSuccess;
}

/* Since CUDA 12 it makes the context at once. */
cudaError_t cudaSetDevice(int device) {
    ENTER();
    int physical;
    cudaError_t error = physical_device(device, &physical);
    if (!error && !(error = make_context(physical))) make_current(physical);
    return error;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    ENTER();
    int physical;
    cudaError_t error = physical_device(device, &physical);
    if (error) return error;
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "Emulated %d", physical);
    write_uuid(physical, properties->uuid.bytes);
    properties->totalGlobalMem = machine->memory;
    properties->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute,
                                   int device) {
    ENTER();
    int physical;
    cudaError_t error = physical_device(device, &physical);
    *value = attribute == cudaDevAttrUnifiedAddressing
        || attribute == cudaDevAttrIpcEventSupport;
    return error;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    ENTER();
    (void)device, (void)peer;
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

/* The same, and contexts, by the API of the driver */

CUresult cuInit(unsigned flags) {
    (void)flags;
    return (CUresult)enter(__func__);
}

CUresult cuDriverGetVersion(int *version) { return (CUresult)cudaDriverGetVersion(version); }

CUresult cuDeviceGetCount(int *count) {
    int all[MAX_DEVICES];
    CUresult refused = cuInit(0);
    *count = refused ? 0 : visible_devices(all);
    return refused;
}

CUresult cuDeviceGet(CUdevice *device, int index) {
    CUresult refused = cuInit(0);
    return refused ? refused : (CUresult)physical_device(index, device);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, length, "Emulated %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    write_uuid(device, uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return (CUresult)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute,
                                            visible_device(device));
}

static char handles[MAX_DEVICES]; /* a context is the address of one of these */

static int device_of(CUcontext context) { return (int)((char *)context - handles); }

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    cudaError_t error = enter(__func__);
    if (!error) error = make_context(device);
    *context = (CUcontext)&handles[device];
    return (CUresult)error;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    return (CUresult)enter(__func__);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    CUresult refused = cuInit(0);
    *flags = 0;
    *active = !refused && machine->processes[self].contexts >> device & 1;
    return refused;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = depth ? (CUcontext)&handles[contexts[depth - 1]] : NULL;
    return (CUresult)enter(__func__);
}

CUresult cuCtxSetCurrent(CUcontext context) {
    if (context) make_current(device_of(context));
    else if (depth) depth--;
    return (CUresult)enter(__func__);
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    cudaError_t error = enter(__func__);
    if (!error && depth == DEPTH) error = cudaErrorInvalidValue;
    if (!error) contexts[depth++] = device_of(context);
    return (CUresult)error;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context) *context = (CUcontext)&handles[contexts[depth]];
    return CUDA_SUCCESS;
}
