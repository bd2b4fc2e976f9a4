/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_RONDE_C_H
#define RONDE_RONDE_C_H

/** @file
 * Ronde's C interface: one door for other languages and for adapters. Plain C99 and newer, also
 * C++. It is a library of its own, libronde_c.so, without LibTorch, and may be loaded by dlopen().
 * Where Ronde is built as shared libraries, a program may mix it with the C++ interface: both serve
 * the one group of this process.
 *
 * Errors. Functions return RONDE_OK (0) or a RONDE_E_* code, but for those few that say otherwise.
 * ronde_last_error() has the text. Nothing is written through result pointers on an error, but that
 * a `work` becomes NULL. No pointer may be NULL unless it says so: that is a
 * RONDE_E_INVALID_ARGUMENT, but of a NULL work RONDE_E_INVALID_HANDLE. No C++ exception ever leaves
 * a function, nor may one leave a callback.
 *
 * Threads. Every function may be called by every thread at any time, several at once, but
 * ronde_init() and ronde_shutdown(), which are not called while another thread is in one of the
 * two. What differs between threads is said: ronde_last_error() and ronde_group_begin().
 *
 * Units. Counts are in elements, never in bytes; shapes in elements, outermost dimension first;
 * times in seconds. Ranks count from 0; within a process set they are numbered by their place in
 * it: roots, peers, splits and results are in that order.
 *
 * Buffers stay the caller's, and are aligned for their element type. They must not be changed
 * (inputs), read or written (outputs) nor freed until the work is done, also where it fails: until
 * then Ronde may use them. What is queued in a stream after ronde_work_wait_stream() may use those
 * on a GPU before that.
 *
 * Processes. The group is that of the process that called ronde_init(): a child of fork() cannot
 * use it.
 */

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RONDE_C_API __attribute__((visibility("default")))
#else
#define RONDE_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Numbers. None of them ever changes its meaning. ------------------------------------------
 */

/** What functions return. */
enum ronde_status {
  RONDE_OK = 0,
  /** An argument of this very call is wrong: NULL, a number out of range. Nothing was started. */
  RONDE_E_INVALID_ARGUMENT = 1,
  /** A work that was freed already, or never was one. */
  RONDE_E_INVALID_HANDLE = 2,
  /** Before ronde_init(), or after ronde_shutdown(). */
  RONDE_E_NOT_INITIALIZED = 3,
  /** What was asked for makes no sense here and now, or does not fit what the other ranks ask for
   * (the text then says what each of them sent). The group goes on. */
  RONDE_E_USAGE = 4,
  /** The group of ranks is broken: the text names the rank that failed first. Every pending and
   * later operation says the same; end the process. */
  RONDE_E_GROUP = 5,
  /** Not done within the time given. Nothing is harmed: wait again. */
  RONDE_E_TIMEOUT = 6,
  /** This version or build of Ronde cannot do it. */
  RONDE_E_UNSUPPORTED = 7,
  /** No memory for what a call needs, or for the result of a work: it is lost to this rank alone,
   * and the job goes on. */
  RONDE_E_OUT_OF_MEMORY = 8,
  /** The result of a work was asked for that is not done: wait first. */
  RONDE_E_PENDING = 9,
  /** The caller's memory is too small for the result; the text says how much it takes. */
  RONDE_E_TOO_SMALL = 10,
  /** A mistake in Ronde, or in a callback or backend of the program's. */
  RONDE_E_INTERNAL = 11
};

/** Element types. */
enum ronde_dtype {
  RONDE_U8 = 0,
  RONDE_I8 = 1,
  RONDE_I16 = 2,
  RONDE_I32 = 3,
  RONDE_I64 = 4,
  RONDE_F16 = 5,  /**< IEEE 754 binary16 */
  RONDE_BF16 = 6, /**< the upper half of a binary32 */
  RONDE_F32 = 7,
  RONDE_F64 = 8,
  RONDE_BOOL = 9 /**< one byte, zero is false */
};

/** Reductions. Sums and products of integers wrap; of bools, the sum is "or", the product is "and",
 * and there is no average; minimum and maximum pass NaN on. */
enum ronde_op {
  RONDE_SUM = 0,
  RONDE_AVERAGE = 1,
  RONDE_MIN = 2,
  RONDE_MAX = 3,
  RONDE_PRODUCT = 4,
  RONDE_ADASUM = 5 /**< allreduces of floating point only: Adasum of whole buffers */
};

/** Numbers with a meaning of their own. */
enum {
  RONDE_ALL_RANKS = 0, /**< the process set that is always there */
  RONDE_CPU = -1,      /**< the device of buffers in host memory */
  RONDE_ANY = -1,      /**< the peer of a recv that takes what any rank sends */
  RONDE_MAX_DIMS = 8   /**< the most dimensions of a shape */
};

/* ---- Texts and features -----------------------------------------------------------------------
 */

/** Why the last call on this thread that failed did so; "" if none has. Never NULL. Valid until the
 * next call on this thread that fails, or its end. */
RONDE_C_API const char* ronde_last_error(void);

/** "0.1.0". A constant. */
RONDE_C_API const char* ronde_version(void);

/** 1 if this library can do `feature`, 0 if not, or if it has never heard of it, or for NULL.
 * Features: "shm" (ranks of one host), "mpi" (an MPI launcher), "hierarchical" (both),
 * "mpi_communicator" (ronde_init_options.mpi_comm and .mpi_ranks), "key_value" (.put and .get),
 * "process_sets", "send_recv", "groups", "join", "streams", "cuda", "nccl", "timeline". Needs no
 * ronde_init(). */
RONDE_C_API int ronde_has(const char* feature);

/* ---- Start and end ----------------------------------------------------------------------------
 */

/** `count` ranks. */
typedef struct ronde_rank_list {
  const int* ranks;
  int count;
} ronde_rank_list;

/** Stores a value under a key, for get() of the other ranks. Keys and values are printable ASCII;
 * each key is put once. Returns 0, or another number for an error, which fails ronde_init(). */
typedef int (*ronde_put_fn)(void* context, const char* key, const char* value);

/** Looks a key up that another rank puts: copies at most `capacity` bytes of its value to `value`
 * (without a NUL) and sets `length` to the length of all of it; if that is above the capacity, it
 * is called again with more. Returns 0; RONDE_KEY_ABSENT if the key is not there (it may also wait
 * for it a while), then it is called again; or another number for an error, which fails
 * ronde_init(). */
typedef int (*ronde_get_fn)(void* context, const char* key, char* value, size_t capacity,
                            size_t* length);
/** What a ronde_get_fn returns for a key that is not there. */
enum { RONDE_KEY_ABSENT = 1 };

/** Zero all of it (`= {0}`), set struct_size to sizeof(ronde_init_options), then what is wanted:
 * zero means the default, but of local_rank, which has none. So a program that was compiled with an
 * older header, whose struct is smaller, works with this library. One with a newer header does,
 * too, unless it uses a field that this library does not know: RONDE_E_UNSUPPORTED.
 *
 * Everything that this points to is needed during ronde_init() only (but see get and put).
 *
 * Ranks are started by an MPI launcher (all of MPI_COMM_WORLD, or those that mpi_comm or mpi_ranks
 * says), or, where `size` is not 0, by anything else, and meet through put and get. */
typedef struct ronde_init_options {
  size_t struct_size; /**< sizeof(ronde_init_options) */

  /** Process sets that are made at the start, equal on all ranks. They get the numbers 1, 2, ...;
   * those of the variable RONDE_PROCESS_SETS follow.
   * @{ */
  const ronde_rank_list* process_sets;
  int process_set_count;
  /** @} */

  /** Not NULL: the Fortran handle (MPI_Comm_c2f()) of the communicator whose ranks make the group,
   * and all call ronde_init(). MPI was initialised before, with MPI_THREAD_MULTIPLE. The
   * communicator may be freed after ronde_init(). */
  const int* mpi_comm;
  /** count > 0: these ranks of MPI_COMM_WORLD make the group, in this order, and alone call
   * ronde_init(); MPI was initialised before, with MPI_THREAD_MULTIPLE, by all processes of the
   * job. */
  ronde_rank_list mpi_ranks;

  /** size > 0: no MPI launcher. This is rank `rank` of `size`, and number `local_rank` among those
   * of its host, in the order of ranks. There is no default for it: a number that is not right is
   * RONDE_E_USAGE on every rank, so give -1 where it is not known. Control plane and data go
   * through sockets and shared memory of one host; ranks on several hosts are refused on every
   * rank, RONDE_E_USAGE. MPI is not touched, and ronde_init() may be called again after
   * ronde_shutdown().
   * @{ */
  int rank;
  int size;
  int local_rank;
  /** @} */
  /** A store of keys and values that all ranks reach; may be NULL where size is 1. Called on a
   * thread of Ronde's, one at a time, and only during ronde_init() (after it only if it failed
   * while such a call did not return).
   * @{ */
  ronde_put_fn put;
  ronde_get_fn get;
  /** @} */
  void* context; /**< passed to both */
  /** What all keys begin with; NULL: "ronde". Each start needs another one, as the store still
   * holds the addresses of the last. Equal on all ranks. */
  const char* prefix;
} ronde_init_options;

/** Joins the group: blocks until all ranks are there, at most RONDE_INIT_TIMEOUT_S (120 unless it
 * is set), and 3 s more where MPI or a get() does not return. NULL: the defaults, which are the
 * ranks of the MPI launcher; without one, a group of one rank. Reads the RONDE_* variables of the
 * environment. RONDE_E_USAGE for nonsense in them or in the options, for configurations that differ
 * between ranks, and if called twice; RONDE_E_GROUP if a rank is missing. */
RONDE_C_API int ronde_init(const ronde_init_options* options);

/** Leaves the group together with all other ranks: lets operations that all of them submitted
 * finish, and sleeps until all have called it (RONDE_SHUTDOWN_TIMEOUT_S sets a limit);
 * RONDE_E_GROUP if a rank dies, after 40 s where it does at the very end. Does nothing if not
 * initialised. Works stay valid handles until they are freed; those of groups that a thread left
 * open (ronde_group_begin()) fail, and RONDE_E_USAGE says so after all has ended. Where Ronde
 * initialised MPI it also finalises it, so that ronde_init() by the launcher's ranks works once
 * only. */
RONDE_C_API int ronde_shutdown(void);

/** 1 between a ronde_init() that succeeded and ronde_shutdown(), else 0. */
RONDE_C_API int ronde_is_initialized(void);

/** Fails the group on purpose: every rank gets a RONDE_E_GROUP with this rank and `text`. */
RONDE_C_API int ronde_abort(const char* text);

/* ---- Who is who -------------------------------------------------------------------------------
 */

/** This rank within a process set; RONDE_E_USAGE if it is not in it. */
RONDE_C_API int ronde_rank(uint32_t set, int* rank);
/** How many ranks a process set has. */
RONDE_C_API int ronde_size(uint32_t set, int* size);
/** This rank among those of its host, how many these are, and the same across hosts: the place of
 * this host among those that have a rank with this local rank.
 * @{ */
RONDE_C_API int ronde_local_rank(int* rank);
RONDE_C_API int ronde_local_size(int* size);
RONDE_C_API int ronde_cross_rank(int* rank);
RONDE_C_API int ronde_cross_size(int* size);
/** @} */
/** 1 if every host has the same number of ranks, else 0. */
RONDE_C_API int ronde_is_homogeneous(int* homogeneous);

/* ---- Process sets -----------------------------------------------------------------------------
 */

/** @name Process sets
 * A process set is some ranks, in an order, that run operations among themselves. Set 0 is all
 * ranks. Those that make or remove one block until all ranks that take part have come, and are not
 * for callbacks. They have no limit of their own: where a rank does not come for
 * RONDE_STALL_ABORT_S (600 unless it is set) the group fails. What goes wrong is a RONDE_E_USAGE on
 * all ranks that take part.
 * @{ */

/** Called by all ranks of the group, with the same ranks, in the same order as others of these
 * calls. */
RONDE_C_API int ronde_process_set_add(const int* ranks, int count, uint32_t* set);
/** Called by the members alone. Calls for the same ranks match in their order; `tag` (may be NULL)
 * tells apart those that may overtake each other. */
RONDE_C_API int ronde_process_set_create(const int* ranks, int count, const char* tag,
                                         uint32_t* set);
/** Called by those who made it. Refused, and the set stays, while a rank has an operation in flight
 * in it. */
RONDE_C_API int ronde_process_set_remove(uint32_t set);
/** The sets that this rank knows, RONDE_ALL_RANKS included, oldest first. `count` is how many `ids`
 * has room for, and becomes how many there are, also with RONDE_E_TOO_SMALL. With `ids` NULL only
 * that. */
RONDE_C_API int ronde_process_set_ids(uint32_t* ids, int* count);
/** The ranks (of the whole group) of a set, in its order; `count` and a NULL as above. */
RONDE_C_API int ronde_process_set_ranks(uint32_t set, int* ranks, int* count);
/** 1 if this rank is in the set, else 0. */
RONDE_C_API int ronde_process_set_included(uint32_t set, int* included);
/** @} */

/* ---- Operations -------------------------------------------------------------------------------
 */

/** One operation that was started, or a group of them. Opaque: a number in the shape of a pointer,
 * which points to nothing. One that was freed is recognised, never followed. NULL is none. */
typedef struct ronde_work_s* ronde_work;

/** @name Operations
 * All that start an operation return at once and give a work, to be freed by ronde_work_free().
 * What this rank alone can see to be wrong is the code of the call, or, within a group (see
 * ronde_group_begin()) and where the engine has to look (a name that is in flight, a factor that is
 * NaN), of ronde_group_end(). What only the ranks together can see is the code of
 * ronde_work_wait().
 *
 * - name: ranks match operations by it; one name is in flight once at a time, within its set.
 *   Copied. NULL or "": matched by the order of calls within the set. Names that repeat from step
 *   to step cost less than new ones.
 * - in, out: dense, row-major. `out` may equal `in`. Either may be NULL where there are no
 *   elements. For allgather, alltoall and reducescatter they may overlap anywhere, which costs a
 *   copy of `in` but where the smaller of both is this rank's own part of the larger; in all
 *   others they are equal or apart, and so are those on a GPU in all. For these three `out` may
 *   always be NULL on the CPU: then the work owns the result, see ronde_work_output().
 * - shape, dims: 1 to RONDE_MAX_DIMS numbers. A scalar (dims 0, where `shape` may be NULL) has no
 *   rows to divide or to join: RONDE_E_USAGE of the work.
 * - prescale, postscale: factors before and after the reduction. Integers are scaled in double
 *   precision and truncated toward zero.
 * - device: RONDE_CPU, or the ordinal of the GPU that `in` and `out` are on. Where the group has no
 *   backend for GPUs, it is a RONDE_E_USAGE that says why.
 * - stream: of a GPU, the cudaStream_t in which the buffers become ready; NULL is the default one.
 *   Nothing of them is touched before what is queued there at the call. NULL with RONDE_CPU.
 * - set: the process set; RONDE_ALL_RANKS is 0.
 *
 * Every rank of the set submits the same: dtype, op, factors, root, count or shape (but for the
 * first dimension of an allgather or alltoall). Disagreement is a RONDE_E_USAGE of the work on
 * every rank.
 * @{ */

/** out = the reduction over all ranks of in; both have `count` elements. */
RONDE_C_API int ronde_allreduce(const char* name, const void* in, void* out, int64_t count,
                                int dtype, int op, double prescale, double postscale, int device,
                                void* stream, uint32_t set, ronde_work* work);

/** buffer = that of rank `root`. */
RONDE_C_API int ronde_broadcast(const char* name, void* buffer, int64_t count, int dtype, int root,
                                int device, void* stream, uint32_t set, ronde_work* work);

/** out = the tensors of all ranks, one after the other along the first dimension, which may differ
 * between ranks. */
RONDE_C_API int ronde_allgather(const char* name, const void* in, const int64_t* shape, int dims,
                                int dtype, void* out, int device, void* stream, uint32_t set,
                                ronde_work* work);

/** Rank r gets splits[r] rows (of the first dimension) of this rank's, one rank's after the
 * other's. `splits` has one number for each rank of the set, copied; they add up to shape[0]. NULL:
 * equally many to each rank. The result has the rows of ronde_work_splits(). */
RONDE_C_API int ronde_alltoall(const char* name, const void* in, const int64_t* shape, int dims,
                               int dtype, const int64_t* splits, void* out, int device,
                               void* stream, uint32_t set, ronde_work* work);

/** out = this rank's part of the reduction over all ranks of in. Of `rows` rows and n ranks, rank r
 * gets rows / n, and one more if r < rows % n. */
RONDE_C_API int ronde_reducescatter(const char* name, const void* in, const int64_t* shape,
                                    int dims, int dtype, int op, double prescale, double postscale,
                                    void* out, int device, void* stream, uint32_t set,
                                    ronde_work* work);

/** A message to rank `peer` of the set, or from it, or from RONDE_ANY (ronde_work_source() says
 * whom). Matched as in MPI, by peers and `tag` (0 and above): messages of one tag from one rank to
 * another do not overtake each other. Both ends agree on count, which may be 0, and dtype. A rank
 * sends nothing to itself: RONDE_E_USAGE.
 *
 * Nothing is buffered: a send is done when the other rank has taken it. Two ranks that each wait
 * for a send to the other before they receive wait for ever; let them start both and then wait. */
RONDE_C_API int ronde_send(const void* buffer, int64_t count, int dtype, int peer, int64_t tag,
                           int device, void* stream, uint32_t set, ronde_work* work);
/** The other end of ronde_send(). */
RONDE_C_API int ronde_recv(void* buffer, int64_t count, int dtype, int peer, int64_t tag,
                           int device, void* stream, uint32_t set, ronde_work* work);

/** Done once every rank of the set has called it. */
RONDE_C_API int ronde_barrier(uint32_t set, ronde_work* work);

/** This rank has no more data: until all ranks of the set have joined, it contributes the neutral
 * element to their reductions. Done when all have; see ronde_work_last_rank().
 *
 * Until then this rank can submit nothing more to the set: RONDE_E_USAGE. The others may go on with
 * allreduces, reducescatters and barriers; allgathers, broadcasts, alltoalls and messages are
 * RONDE_E_USAGE of the work. An average divides by the number of ranks that have not joined, or by
 * that of all where RONDE_JOIN_AVERAGE is "all". */
RONDE_C_API int ronde_join(uint32_t set, ronde_work* work);

/** Between the two, collectives that this thread submits to this set (of other sets: as ever) give
 * their works, but are not started. ronde_group_end() starts them all or none: they begin together
 * once every rank has submitted the whole group, and if one of them is refused all are. `work`
 * stands for the group: it is done when all are, with the first error among them.
 *
 * The set is one that this rank is in, and a thread has one group open at most: RONDE_E_USAGE.
 * Barrier, join, send and recv on the set are not for groups (RONDE_E_UNSUPPORTED), and waiting for
 * a work of a group that is open, or asking for its result, is a RONDE_E_USAGE; a call that failed
 * is not part of the group, which stays open. If ronde_group_end() fails, so do the works, with the
 * same text; so do those of a group that is open when its thread ends, when the callback returns
 * that began it, or at ronde_shutdown(), and then ronde_group_end() says so.
 *
 * A callback (ronde_work_on_done()) has nothing to do with the group of the thread that it happens
 * to run on: what it submits is not part of it, and a group that it begins is its own. */
RONDE_C_API int ronde_group_begin(uint32_t set);
/** Ends what ronde_group_begin() began. */
RONDE_C_API int ronde_group_end(ronde_work* work);
/** @} */

/* ---- Works ------------------------------------------------------------------------------------
 */

/** @name Works
 * The life of a work: from the call that gave it until ronde_work_free(), whatever becomes of the
 * operation and of the group of ranks. Several threads may wait for one, and another free it
 * meanwhile: who waits is not disturbed.
 * @{ */

/** 1 if the result or the error is there, else 0; never blocks. */
RONDE_C_API int ronde_work_done(ronde_work work, int* done);

/** Blocks until done, at most `timeout_s` seconds; a negative number waits for ever. Returns the
 * operation's error, each time; RONDE_E_TIMEOUT if it is not done. A thread that is in a callback
 * of ronde_work_on_done() must not wait for what is not done: RONDE_E_USAGE. */
RONDE_C_API int ronde_work_wait(ronde_work work, double timeout_s);

/** Of buffers on a GPU: blocks until the result is queued there, which is before it is in memory,
 * and has what is queued in `stream` (of the same GPU; a cudaStream_t, NULL is the default one)
 * from now on run after it. What fails on the GPU later fails the group. Of buffers on the CPU it
 * is ronde_work_wait(), for ever. */
RONDE_C_API int ronde_work_wait_stream(ronde_work work, void* stream);

/** Called once, when the operation is done: `status` is its code, and ronde_last_error() has the
 * text within the call. On a thread of Ronde's, one that waits, or at once on this one if it is
 * done. It may submit operations, but must neither block nor throw: what a callback in C++ throws
 * is logged. `context` is needed until it has returned; it is called also where the work was freed
 * meanwhile. */
typedef void (*ronde_done_fn)(void* context, int status);
/** Asks for such a call. */
RONDE_C_API int ronde_work_on_done(ronde_work work, ronde_done_fn fn, void* context);

/** Of a work that succeeded: where its result is, its shape (room for RONDE_MAX_DIMS numbers) and
 * type. Each pointer may be NULL. Where the work owns the result (`out` was NULL) the memory is
 * valid until ronde_work_free(); it is aligned to 64 bytes, and NULL where there are no elements.
 * Else it is the `out` (or the buffer) of the call. Not for barriers, sends, joins and groups:
 * RONDE_E_INVALID_ARGUMENT, as for the following three. */
RONDE_C_API int ronde_work_output(ronde_work work, void** data, int* dims, int64_t* shape,
                                  int* dtype);
/** Of an alltoall: the rows that came from each rank of the set; `splits` has room for one number
 * for each of them. */
RONDE_C_API int ronde_work_splits(ronde_work work, int64_t* splits);
/** Of a recv: the rank that the message came from. */
RONDE_C_API int ronde_work_source(ronde_work work, int* rank);
/** Of a join: the rank that came last. */
RONDE_C_API int ronde_work_last_rank(ronde_work work, int* rank);

/** Ends the handle, not the operation: one that is not done goes on, and its buffers stay in use.
 * When it is done is then known from ronde_work_on_done() alone, so set that before. An error that
 * nobody has asked for is logged. A work that was freed before is a RONDE_E_INVALID_HANDLE; NULL is
 * nothing to free, and RONDE_OK. */
RONDE_C_API int ronde_work_free(ronde_work work);
/** @} */

/* ---- Looking in -------------------------------------------------------------------------------
 */

/** What this rank did so far: a JSON object of parts, each an object of counters, with a NUL at its
 * end. RONDE_E_TOO_SMALL if that is longer than `size` bytes, and nothing is written; 16384 mostly
 * do. */
RONDE_C_API int ronde_stats_json(char* buffer, size_t size);

/** There is no timeline in this version: RONDE_E_UNSUPPORTED.
 * @{ */
RONDE_C_API int ronde_timeline_start(const char* path, int mark_cycles);
RONDE_C_API int ronde_timeline_stop(void);
/** @} */

#ifdef __cplusplus
}
#endif

#endif
