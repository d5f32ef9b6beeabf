/* The names of errors, and the functions that nothing here has a use for. */

#include "emulated.h"

#include <cuda.h>

#define NAME(error) case error: return #error;

const char *cudaGetErrorName(cudaError_t error) {
    switch ((int)error) {
    NAME(cudaSuccess)
    NAME(cudaErrorInvalidValue)
    NAME(cudaErrorMemoryAllocation)
    NAME(cudaErrorInitializationError)
    NAME(cudaErrorDevicesUnavailable)
    NAME(cudaErrorNoDevice)
    NAME(cudaErrorInvalidDevice)
    NAME(cudaErrorDeviceUninitialized)
    NAME(cudaErrorMapBufferObjectFailed)
    NAME(cudaErrorInvalidResourceHandle)
    NAME(cudaErrorNotReady)
    NAME(cudaErrorIllegalAddress)
    NAME(cudaErrorNotSupported)
    default: return "cudaErrorOfTheEmulation";
    }
}

const char *cudaGetErrorString(cudaError_t error) {
    (void)error;
    return "reported by the emulated CUDA runtime";
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }

CUresult cuGetErrorName(CUresult error, const char **name) {
    *name = cudaGetErrorName((cudaError_t)error);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}

/* By this a program sees that the library is not NVIDIA's. */
const int sharedtensor_emulated_cuda = 1;
