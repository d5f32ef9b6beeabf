/* The machine: tables that the processes share, their lock, and who is alive. */

#define _GNU_SOURCE
#include "emulated.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const size_t DEFAULT_MEMORY = (size_t)512 << 20;

struct machine *machine;
int self = NOBODY;

static char *memories[MAX_DEVICES];
static int forked;
static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;

/* Faults that tests inject: EMULATED_CUDA_FAIL is "function:which call:error". The
   calls of a process are counted from 1; 0 means every one. */

static cudaError_t injected(const char *function) {
    static int calls;
    const char *text = getenv("EMULATED_CUDA_FAIL");
    char name[64];
    int which, error;
    if (!text || sscanf(text, "%63[^:]:%d:%d", name, &which, &error) != 3) return 0;
    if (strcmp(name, function)) return 0;
    int call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    return !which || call == which ? (cudaError_t)error : cudaSuccess;
}

cudaError_t enter(const char *function) {
    if (forked) return cudaErrorInitializationError;
    cudaError_t error = injected(function);
    return error ? error : join_machine();
}

static void in_forked_child(void) { forked = machine != NULL; }

/* Who is alive */

static unsigned long long start_of(pid_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    text[got > 0 ? got : 0] = 0;
    char *field = strrchr(text, ')'); /* the name may contain blanks and brackets */
    if (!field || field[2] == 'Z' || field[2] == 'X') return 0;
    for (int n = 0; n < 20 && field; n++) field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}

static void release_process(int process) {
    release_process_streams(process);
    release_process_memory(process);
    memset(&machine->processes[process], 0, sizeof machine->processes[process]);
    changed();
}

static void release_the_dead(void) {
    for (int n = 0; n < MAX_PROCESSES; n++) {
        struct process *row = &machine->processes[n];
        if (row->pid && start_of(row->pid) != row->start) release_process(n);
    }
}

static int add_process(void) {
    release_the_dead();
    for (int n = 0; n < MAX_PROCESSES; n++)
        if (!machine->processes[n].pid) {
            machine->processes[n].start = start_of(getpid());
            machine->processes[n].pid = getpid();
            return n;
        }
    return NOBODY;
}

/* The lock, and waiting for others */

static void take(void) {
    if (pthread_mutex_lock(&machine->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&machine->lock);
}

void lock(void) {
    take();
    release_the_dead();
}

void unlock(void) { pthread_mutex_unlock(&machine->lock); }

void changed(void) {
    machine->generation++;
    syscall(SYS_futex, &machine->generation, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

void wait_for_change(void) {
    struct timespec longest = {0, 200000000}; /* then see whether somebody has died */
    uint32_t seen = machine->generation;
    unlock();
    syscall(SYS_futex, &machine->generation, FUTEX_WAIT, seen, &longest, NULL, 0);
    lock();
}

uint64_t new_serial(void) { return ++machine->last_serial; }

/* Joining */

static int opened(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("EMULATED_CUDA_FOLDER"), name);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void *mapped(const char *name, size_t size) {
    int file = opened(name);
    if (file < 0) return NULL;
    struct stat found;
    if (fstat(file, &found) || (found.st_size < (off_t)size && ftruncate(file, size))) {
        close(file);
        return NULL;
    }
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

static size_t number(const char *variable, size_t otherwise) {
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void set_up(struct machine *made) {
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&made->lock, &shared);
    made->memory = number("EMULATED_CUDA_MEMORY", DEFAULT_MEMORY) / BLOCK * BLOCK;
    made->devices = number("EMULATED_CUDA_DEVICES", 2);
    if (made->devices > MAX_DEVICES) made->devices = MAX_DEVICES;
}

/* The first process makes the tables; a lock on the folder decides which it is. */
static struct machine *open_machine(void) {
    const char *path = getenv("EMULATED_CUDA_FOLDER");
    int folder = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (folder < 0) return NULL;
    flock(folder, LOCK_EX);
    struct machine *found = mapped("machine", sizeof *found);
    if (found && !found->memory) set_up(found);
    close(folder);
    return found;
}

cudaError_t join_machine(void) {
    pthread_mutex_lock(&joining);
    if (!machine && (machine = open_machine())) {
        pthread_atfork(NULL, NULL, in_forked_child);
        take();
        self = add_process();
        unlock();
    }
    pthread_mutex_unlock(&joining);
    if (!machine) return cudaErrorNoDevice;
    return self == NOBODY ? cudaErrorMemoryAllocation : cudaSuccess;
}

static const char *const DEVICES[MAX_DEVICES] = {"device-0", "device-1", "device-2", "device-3"};

int open_device(int device) { return opened(DEVICES[device]); }

char *device_memory(int device) {
    if (!memories[device]) memories[device] = mapped(DEVICES[device], machine->memory);
    return memories[device];
}
