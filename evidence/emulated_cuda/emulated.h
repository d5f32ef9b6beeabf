/* An emulated CUDA runtime: what the parts of the library know of each other.

   The library stands in for libcudart and libcuda where there is no GPU, so that the
   real binding (CuPy) and the protocol over it run with real processes and real
   asynchrony. It is written from NVIDIA's manuals and proves nothing about a device.

   Its processes share one machine: a folder with a file of tables (`machine.c`) and one
   of memory for each device. Everything is done under one lock, in memory that outlives
   the death of whoever holds it. What a manual calls undefined is made visible: freed
   memory holds POISON, and a wait for an event that its exporter destroyed never ends.

   Work is held back until somebody waits for it. A thread of each stream does it then,
   so what is read without a wait is old every time, not now and then. */

#ifndef EMULATED_H
#define EMULATED_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    MAX_DEVICES = 4,
    MAX_PROCESSES = 64, /* one bit each in block.opens */
    MAX_BLOCKS = 1024,
    MAX_ALLOCATIONS = 4096,
    MAX_STREAMS = 512,
    MAX_EVENTS = 2048,
    NOBODY = -1,
    EVERYBODY = -2, /* of what is there while somebody refers to it: see `virtual.c` */
    POISON = 0xDB,
};
#define BLOCK ((size_t)2 << 20)   /* what the driver takes at a time and shares */
#define SMALL ((size_t)1 << 20)   /* smaller allocations lie in a block with others */
#define ALIGNMENT ((size_t)512)
#define CONTEXT ((size_t)8 << 20) /* what a process takes on each device it uses */

struct process {
    pid_t pid;
    unsigned long long start; /* clock ticks since boot: a pid is given out again */
    unsigned contexts;        /* one bit a device */
};

/* Memory as the driver takes it. A freed one is an orphan while somebody has it open. */
struct block {
    uint64_t serial; /* 0: the row is not used */
    int device, owner;
    size_t offset, size;
    uint64_t opens; /* one bit a process */
    int exportable;
};

/* What cudaMalloc returned: a part of a block. */
struct allocation {
    uint64_t serial;
    int block;
    size_t offset, size; /* in the block */
};

/* A queue of work as other processes see it; positions count all that was queued. */
struct stream {
    uint64_t serial;
    int owner;
    uint64_t queued, demanded, done;
};

struct event {
    uint64_t serial;
    uint64_t died; /* the serial of one that went with its process */
    int owner, stream;
    uint64_t stream_serial, position;
};

struct machine {
    pthread_mutex_t lock;
    uint32_t generation; /* a futex: changes with everything others may wait for */
    uint64_t last_serial;
    int devices;
    size_t memory;
    struct process processes[MAX_PROCESSES];
    struct block blocks[MAX_BLOCKS];
    struct allocation allocations[MAX_ALLOCATIONS];
    struct stream streams[MAX_STREAMS];
    struct event events[MAX_EVENTS];
};

extern struct machine *machine;
extern int self; /* the row of this process */

/* Enters a function of the API: fails where a test wants it, or without a machine. */
#define ENTER() do { \
    cudaError_t refused = enter(__func__); \
    if (refused) return refused; \
} while (0)

/* machine.c */
cudaError_t enter(const char *function);
void lock(void);
void unlock(void);
void changed(void);
void wait_for_change(void); /* gives the lock up meanwhile */
uint64_t new_serial(void);
cudaError_t join_machine(void);
int open_device(int device);
char *device_memory(int device);

/* devices.c */
int visible_devices(int *physical);
cudaError_t physical_device(int visible, int *device);
int current_device(void); /* physical */
cudaError_t use_device(int *device);
cudaError_t make_context(int device);

/* memory.c */
void release_process_memory(int process);
size_t memory_used(int device);
int make_block(int device, size_t size);
cudaError_t locate(uintptr_t pointer, size_t bytes, int *device, size_t *offset);
cudaError_t address_range(uintptr_t pointer, uintptr_t *base, size_t *size);

/* virtual.c */
void release_unreferenced(void);
int locate_mapped(uintptr_t pointer, size_t bytes, int *device, size_t *offset);
size_t contiguous(const void *pointer, size_t size);

/* streams.c */
void release_process_streams(int process);

#endif
