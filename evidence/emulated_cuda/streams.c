/* Streams and events: work that a thread of each stream does once it is asked for.

   A stream is a queue. Its thread does what is queued up to the position that somebody
   has demanded: the host that synchronises, or a stream that waits for an event of it,
   in this process or in another. An event is a position of a stream. */

#define _GNU_SOURCE
#include "emulated.h"

#include <cuda.h>
#include <stdlib.h>
#include <string.h>

enum kind { COPY, MOVE, FILL, WAIT };

struct work {
    struct work *next;
    enum kind kind;
    int device, from_device; /* physical */
    size_t offset, from, size;
    int value;
    /* WAIT: for a position of a stream, under an event or none */
    int stream, event, imported;
    uint64_t stream_serial, position, event_serial;
    char data[];
};

struct CUstream_st {
    int row, device;
    unsigned flags;
    int threaded;
    struct work *first, **last;
    struct CUstream_st *next;
};

struct CUevent_st {
    int row, imported;
    unsigned flags;
    uint64_t serial;
};

/* Of an event it is not said that a handle is given out once only: it is not. */
struct handle {
    char magic[8];
    int row;
};
static const char MAGIC[8] = "emu-evt";

static struct CUstream_st *streams;            /* all of this process */
static struct CUstream_st *legacy[MAX_DEVICES]; /* the default ones */

static struct stream *row_of(struct CUstream_st *stream) {
    return &machine->streams[stream->row];
}

void release_process_streams(int process) {
    for (int n = 0; n < MAX_STREAMS; n++)
        if (machine->streams[n].serial && machine->streams[n].owner == process)
            machine->streams[n].serial = 0; /* what was pending is over and not done */
    for (int n = 0; n < MAX_EVENTS; n++) {
        struct event *event = &machine->events[n];
        if (!event->serial || event->owner != process) continue;
        event->died = event->serial;
        event->serial = 0;
    }
}

/* Doing */

static void demand(int stream, uint64_t serial, uint64_t position) {
    struct stream *row = &machine->streams[stream];
    if (row->serial != serial || row->demanded >= position) return;
    row->demanded = position;
    changed();
}

static int is_reached(int stream, uint64_t serial, uint64_t position) {
    struct stream *row = &machine->streams[stream];
    return row->serial != serial || row->done >= position;
}

/* What a manual calls undefined: the exporter has destroyed the event. */
static int is_undefined(int event, uint64_t serial, int imported) {
    struct event *row = &machine->events[event];
    return imported && row->serial != serial && row->died != serial;
}

static void await(struct work *work) {
    for (;;) {
        demand(work->stream, work->stream_serial, work->position);
        if (!is_undefined(work->event, work->event_serial, work->imported)
            && is_reached(work->stream, work->stream_serial, work->position))
            return;
        wait_for_change();
    }
}

static void perform(struct work *work) {
    char *memory = work->kind == WAIT ? NULL : device_memory(work->device);
    switch (work->kind) {
    case COPY: memcpy(memory + work->offset, work->data, work->size); break;
    case MOVE: memmove(memory + work->offset, device_memory(work->from_device) + work->from,
                       work->size); break;
    case FILL: memset(memory + work->offset, work->value, work->size); break;
    case WAIT: await(work); break;
    }
}

static void *serve(void *argument) {
    struct CUstream_st *stream = argument;
    lock();
    for (;;) {
        struct stream *row = row_of(stream);
        while (!stream->first || row->done >= row->demanded) wait_for_change();
        struct work *work = stream->first;
        perform(work);
        stream->first = work->next;
        if (!stream->first) stream->last = &stream->first;
        free(work);
        row->done++;
        changed();
    }
    return NULL;
}

/* Queueing; the caller holds the lock */

static struct CUstream_st *make_stream(int device, unsigned flags) {
    int row = 0;
    while (row < MAX_STREAMS && machine->streams[row].serial) row++;
    struct CUstream_st *made = row < MAX_STREAMS ? calloc(1, sizeof *made) : NULL;
    if (!made) return NULL;
    machine->streams[row] = (struct stream){.serial = new_serial(), .owner = self};
    *made = (struct CUstream_st){.row = row, .device = device, .flags = flags,
                                 .last = &made->first, .next = streams};
    return streams = made;
}

static struct CUstream_st *found(cudaStream_t stream, int device) {
    if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread)
        return stream;
    if (!legacy[device]) legacy[device] = make_stream(device, cudaStreamDefault);
    return legacy[device];
}

static cudaError_t append(struct CUstream_st *stream, struct work *work) {
    if (!stream->threaded) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, stream)) return cudaErrorUnknown;
        pthread_detach(thread);
        stream->threaded = 1;
    }
    *stream->last = work;
    stream->last = &work->next;
    row_of(stream)->queued++;
    return cudaSuccess;
}

static struct work *new_work(enum kind kind, size_t data) {
    struct work *work = calloc(1, sizeof *work + data);
    if (work) work->kind = kind;
    return work;
}

static cudaError_t queue_wait(struct CUstream_st *stream, struct CUstream_st *other) {
    struct stream *row = row_of(other);
    struct work *work = new_work(WAIT, 0);
    if (!work) return cudaErrorMemoryAllocation;
    work->stream = other->row;
    work->stream_serial = row->serial;
    work->position = row->queued;
    return append(stream, work);
}

static int is_ordered(struct CUstream_st *one, struct CUstream_st *other) {
    int default_one = one == legacy[one->device], default_other = other == legacy[one->device];
    unsigned free_one = (default_one ? other : one)->flags & cudaStreamNonBlocking;
    return one != other && one->device == other->device && default_one != default_other
        && !free_one;
}

/* The default stream and those that block are ordered: each waits for the other. */
static cudaError_t queue(struct CUstream_st *stream, struct work *work) {
    cudaError_t error = work ? cudaSuccess : cudaErrorMemoryAllocation;
    for (struct CUstream_st *other = streams; other && !error; other = other->next)
        if (is_ordered(stream, other)) error = queue_wait(stream, other);
    return error ? error : append(stream, work);
}

static void finish(struct CUstream_st *stream) {
    struct stream *row = row_of(stream);
    uint64_t position = row->queued;
    demand(stream->row, row->serial, position);
    while (row->done < position) wait_for_change();
}

/* Copies */

static cudaError_t to_device(struct CUstream_st *stream, const void *to, const void *from,
                             size_t size) {
    int device;
    size_t offset;
    cudaError_t error = locate((uintptr_t)to, size, &device, &offset);
    if (error) return error;
    struct work *work = new_work(COPY, size);
    if (!work) return cudaErrorMemoryAllocation;
    work->device = device, work->offset = offset, work->size = size;
    memcpy(work->data, from, size);
    return queue(stream, work);
}

static cudaError_t to_host(struct CUstream_st *stream, void *to, const void *from,
                           size_t size) {
    int device;
    size_t offset;
    struct work *nothing = new_work(FILL, 0);
    cudaError_t error = locate((uintptr_t)from, size, &device, &offset);
    if (error || !nothing) return error ? error : cudaErrorMemoryAllocation;
    nothing->device = device;
    error = queue(stream, nothing); /* so that it comes after what it is ordered with */
    if (error) return error;
    finish(stream);
    memcpy(to, device_memory(device) + offset, size);
    return cudaSuccess;
}

static cudaError_t on_device(struct CUstream_st *stream, void *to, const void *from,
                             size_t size) {
    struct work *work = new_work(MOVE, 0);
    if (!work) return cudaErrorMemoryAllocation;
    work->size = size;
    if (locate((uintptr_t)to, size, &work->device, &work->offset)
        || locate((uintptr_t)from, size, &work->from_device, &work->from)) {
        free(work);
        return cudaErrorInvalidValue;
    }
    return queue(stream, work);
}

static int is_on_device(const void *pointer) {
    int device;
    size_t offset;
    return !locate((uintptr_t)pointer, 1, &device, &offset);
}

static enum cudaMemcpyKind guessed(const void *to, const void *from) {
    if (is_on_device(to))
        return is_on_device(from) ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
    return is_on_device(from) ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

static cudaError_t copy_run(struct CUstream_st *stream, void *to, const void *from,
                            size_t size, enum cudaMemcpyKind kind) {
    if (!stream) return cudaErrorMemoryAllocation;
    switch (kind == cudaMemcpyDefault ? guessed(to, from) : kind) {
    case cudaMemcpyHostToDevice: return to_device(stream, to, from, size);
    case cudaMemcpyDeviceToHost: return to_host(stream, to, from, size);
    case cudaMemcpyDeviceToDevice: return on_device(stream, to, from, size);
    default: memmove(to, from, size); return cudaSuccess;
    }
}

/* Virtual memory that is mapped side by side is copied piece by piece. */
static cudaError_t copy(struct CUstream_st *stream, void *to, const void *from,
                        size_t size, enum cudaMemcpyKind kind) {
    cudaError_t error = cudaSuccess;
    for (size_t done = 0, run; done < size && !error; done += run) {
        run = contiguous((char *)to + done, size - done);
        run = contiguous((const char *)from + done, run);
        error = copy_run(stream, (char *)to + done, (const char *)from + done, run, kind);
    }
    return error;
}

/* To the device it returns when the data is taken; a copy to the host is complete. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size,
                            enum cudaMemcpyKind kind, cudaStream_t stream) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    lock();
    error = copy(found(stream, device), to, from, size, kind);
    unlock();
    return error;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    ENTER();
    return cudaMemcpyAsync(to, from, size, kind, NULL);
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t size, cudaStream_t stream) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    struct work *work = error ? NULL : new_work(FILL, 0);
    if (!work) return error ? error : cudaErrorMemoryAllocation;
    work->value = value, work->size = size;
    lock();
    error = locate((uintptr_t)pointer, size, &work->device, &work->offset);
    if (!error) error = queue(found(stream, device), work);
    else free(work);
    unlock();
    return error;
}

cudaError_t cudaMemset(void *pointer, int value, size_t size) {
    ENTER();
    return cudaMemsetAsync(pointer, value, size, NULL);
}

/* Streams */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    lock();
    *stream = make_stream(device, flags);
    unlock();
    return *stream ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
                                         int priority) {
    ENTER();
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    ENTER();
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

/* Its thread and its row stay: what is queued still has to be done. */
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    ENTER();
    lock();
    demand(stream->row, row_of(stream)->serial, row_of(stream)->queued);
    unlock();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    lock();
    struct CUstream_st *one = found(stream, device);
    if (one) finish(one);
    unlock();
    return one ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  enum cudaStreamCaptureStatus *status) {
    ENTER();
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    lock();
    struct CUstream_st *one = found(stream, device);
    int done = !one || row_of(one)->done == row_of(one)->queued;
    if (!done) demand(one->row, row_of(one)->serial, row_of(one)->queued);
    unlock();
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    lock();
    for (struct CUstream_st *each = streams; each; each = each->next)
        if (each->device == device) finish(each);
    unlock();
    return cudaSuccess;
}

CUresult cuCtxSynchronize(void) { return (CUresult)cudaDeviceSynchronize(); }

/* Events */

static int vacant_event(void) {
    for (int n = 0; n < MAX_EVENTS; n++)
        if (!machine->events[n].serial) return n;
    return NOBODY;
}

static struct CUevent_st *hold(int row, int imported, unsigned flags) {
    struct CUevent_st *made = calloc(1, sizeof *made);
    if (made)
        *made = (struct CUevent_st){row, imported, flags, machine->events[row].serial};
    return made;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    if (flags & cudaEventInterprocess && !(flags & cudaEventDisableTiming))
        return cudaErrorInvalidValue;
    lock();
    int row = vacant_event();
    if (row != NOBODY) {
        uint64_t died = machine->events[row].died;
        machine->events[row] = (struct event){.owner = self, .died = died};
        machine->events[row].serial = new_serial();
    }
    *event = row == NOBODY ? NULL : hold(row, 0, flags);
    unlock();
    return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    ENTER();
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    ENTER();
    lock();
    if (!event->imported) machine->events[event->row].serial = 0;
    changed();
    unlock();
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error) return error;
    lock();
    struct CUstream_st *one = found(stream, device);
    struct work *nothing = one ? new_work(FILL, 0) : NULL;
    if (nothing) nothing->device = device;
    if (!one || (error = queue(one, nothing))) {
        unlock();
        return error ? error : cudaErrorMemoryAllocation;
    }
    struct event *row = &machine->events[event->row];
    row->stream = one->row;
    row->stream_serial = row_of(one)->serial;
    row->position = row_of(one)->queued;
    unlock();
    return cudaSuccess;
}

static cudaError_t queue_event(struct CUstream_st *stream, struct CUevent_st *event) {
    struct event *row = &machine->events[event->row];
    if (!row->stream_serial) return cudaSuccess; /* it was never recorded */
    struct work *work = new_work(WAIT, 0);
    if (!work) return cudaErrorMemoryAllocation;
    work->stream = row->stream, work->stream_serial = row->stream_serial;
    work->position = row->position;
    work->event = event->row, work->event_serial = event->serial;
    work->imported = event->imported;
    if (row->stream == stream->row) work->position = 0; /* its own earlier work */
    return queue(stream, work);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    if (error || flags) return error ? error : cudaErrorInvalidValue;
    lock();
    struct CUstream_st *one = found(stream, device);
    error = one ? queue_event(one, event) : cudaErrorMemoryAllocation;
    unlock();
    return error;
}

static int is_complete(struct CUevent_st *event) {
    struct event *row = &machine->events[event->row];
    if (is_undefined(event->row, event->serial, event->imported)) return 0;
    if (!row->stream_serial) return 1;
    demand(row->stream, row->stream_serial, row->position);
    return is_reached(row->stream, row->stream_serial, row->position);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    ENTER();
    lock();
    int complete = is_complete(event);
    unlock();
    return complete ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ENTER();
    lock();
    while (!is_complete(event)) wait_for_change();
    unlock();
    return cudaSuccess;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    ENTER();
    struct handle made = {.row = event->row};
    if (event->imported || !(event->flags & cudaEventInterprocess))
        return cudaErrorInvalidValue;
    memcpy(made.magic, MAGIC, sizeof MAGIC);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &made, sizeof made);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    ENTER();
    int device;
    cudaError_t error = use_device(&device);
    struct handle wanted;
    memcpy(&wanted, handle.reserved, sizeof wanted);
    if (error || memcmp(wanted.magic, MAGIC, sizeof MAGIC))
        return error ? error : cudaErrorInvalidValue;
    lock();
    struct event *row = &machine->events[wanted.row];
    if (!row->serial) error = cudaErrorMapBufferObjectFailed;
    else if (row->owner == self) error = cudaErrorDeviceUninitialized;
    else if (!(*event = hold(wanted.row, 1, 0))) error = cudaErrorMemoryAllocation;
    unlock();
    return error;
}

/* The rest of the driver's API that the fitness check of the gate uses */

CUresult cuMemsetD32_v2(CUdeviceptr pointer, unsigned value, size_t count) {
    unsigned *words = malloc(count * sizeof *words);
    for (size_t n = 0; words && n < count; n++) words[n] = value;
    cudaError_t error = words ? cudaMemcpy((void *)pointer, words, count * sizeof *words,
                                           cudaMemcpyHostToDevice)
                              : cudaErrorMemoryAllocation;
    free(words);
    return (CUresult)error;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    return (CUresult)cudaMemcpy(to, (void *)from, size, cudaMemcpyDeviceToHost);
}
