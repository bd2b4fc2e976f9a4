/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_RONDE_C_H
#define RONDE_RONDE_C_H

/** @file
 * Ronde's C interface, for other languages and for adapters, in C99 that is also C++. The library,
 * libronde_c.so, needs no LibTorch and may be loaded by dlopen(). Where Ronde is built as shared
 * libraries, a program may mix it with the C++ interface: both use the one group of this process.
 *
 * Errors. Functions return RONDE_OK (0) or a RONDE_E_* code unless they are documented otherwise.
 * ronde_last_error() has the text. On an error a result pointer is not written to, except that a
 * `work` becomes NULL. A NULL pointer is a RONDE_E_INVALID_ARGUMENT unless documented otherwise, a
 * NULL work RONDE_E_INVALID_HANDLE. No C++ exception leaves a function, nor may one leave a
 * callback.
 *
 * Threads. Any thread may call any function at any time, except that ronde_init() and
 * ronde_shutdown() are not called while another thread is in one of the two, and that one thread of
 * a process set alone may leave names out (ronde_operation_options). ronde_last_error() and
 * ronde_group_begin() have a state for each thread.
 *
 * Units. Counts are in elements, never in bytes; shapes in elements, outermost dimension first;
 * times in seconds. Ranks count from 0; within a process set they are numbered by their place in
 * it: roots, peers, splits and results are in that order.
 *
 * Buffers belong to the caller and are aligned for their element type. Until the work is done, also
 * where it fails, inputs must not be changed, outputs neither read nor written, and both not freed.
 * Ronde refuses an operation that would write what another one in flight uses, or read what another
 * one writes (RONDE_E_USAGE). Work that is queued in a stream after ronde_work_wait_stream() may
 * use buffers on a GPU before that.
 *
 * Processes. A child of fork() cannot use the group or the worlds of its parent.
 */

#include <stddef.h>
#include <stdint.h>

#include "ronde/ronde_c_types.h"

#if defined(__GNUC__)
#define RONDE_C_API __attribute__((visibility("default")))
#else
#define RONDE_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Returns the text of the last call on this thread that failed; "" if none has. Never NULL. Valid
 * until the next call on this thread that fails, or the end of the thread. */
RONDE_C_API const char* ronde_last_error(void);

/** "0.1.0". A constant. */
RONDE_C_API const char* ronde_version(void);

/** Returns 1 if this library has `feature` on this machine, else 0, also for unknown names and
 * NULL. Features: "shm" (ranks of one host), "mpi" (an MPI launcher), "hierarchical" (ranks of
 * several hosts), "ucx" (several hosts without MPI), "mpi_communicator"
 * (ronde_init_options.mpi_comm and .mpi_ranks), "key_value" (.put and .get), "process_sets",
 * "send_recv", "groups", "join", "streams", "cuda" (buffers on GPUs: the driver can be loaded),
 * "nccl" (NCCL can be loaded as well), "timeline", "worlds". Needs no ronde_init(). */
RONDE_C_API int ronde_has(const char* feature);
/** Returns 0 where ronde_has() is 0. For "cuda" it is the version of the driver (12080 is
 * CUDA 12.8), for "nccl" that of NCCL (22304 is 2.23.4), for others 1, and more in later versions.
 */
RONDE_C_API int ronde_feature_version(const char* feature);

/** Joins the group: blocks until all ranks are there, at most RONDE_INIT_TIMEOUT_S (120 unless it
 * is set), and 3 s more where MPI or a get() does not return. NULL: the defaults, which are the
 * ranks of the MPI launcher; without one, a group of one rank. Reads the RONDE_* variables of the
 * environment. RONDE_E_USAGE for invalid variables or options, for configurations that differ
 * between ranks, and if called twice; RONDE_E_GROUP if a rank is missing. */
RONDE_C_API int ronde_init(const ronde_init_options* options);

/** Leaves the group together with all other ranks: finishes operations that all of them submitted,
 * and sleeps until all have called it (RONDE_SHUTDOWN_TIMEOUT_S sets a limit). RONDE_E_GROUP if a
 * rank dies, after 40 s where it does so at the very end. Does nothing if not initialised. Works
 * stay valid handles until they are freed. Works of groups that a thread left open
 * (ronde_group_begin()) fail, and this returns RONDE_E_USAGE once the rest has ended. Where Ronde
 * initialised MPI it also finalises it, so that the launcher's ranks can call ronde_init() once. */
RONDE_C_API int ronde_shutdown(void);
/** As ronde_shutdown(), with a limit in place of RONDE_SHUTDOWN_TIMEOUT_S: where the shutdown is
 * not over after so many seconds, the group fails, and every rank gets a RONDE_E_GROUP that names
 * those that had not called it. 0: as long as all ranks live. */
RONDE_C_API int ronde_shutdown_within(double seconds);

/** Returns 1 between a ronde_init() that succeeded and ronde_shutdown(), else 0. */
RONDE_C_API int ronde_is_initialized(void);

/** Returns 1 if `ronde run --elastic` has started this process, else 0. */
RONDE_C_API int ronde_is_elastic(void);
/** Ends the group, if this process is in one, and starts the next of an elastic job: in place of
 * ronde_init(), and again after each RONDE_E_GROUP. Blocks until each process of the job has called
 * it or ended. Sets, prepared operations and works of the last group are void. The job ends where
 * fewer than `min_ranks` ranks are left. `number` becomes that of the group, from 1, `slot` the
 * place of this process in the job, and `slots` that of each rank: places keep their order, and a
 * replacement takes one over. `count` and `slots` are as in ronde_process_set_ids(); with
 * RONDE_E_TOO_SMALL the group has started, and all but `slots` is written. RONDE_E_USAGE where
 * ronde_is_elastic() is 0; for groups that a thread left open as ronde_shutdown(), after the start.
 */
RONDE_C_API int ronde_reform(int min_ranks, int* number, int* slot, int* slots, int* count);
/** Returns 1 if an elastic job had a group before all ranks of the present one had come, else 0: if
 * none of them has a state then, that of the job is lost. */
RONDE_C_API int ronde_job_goes_on(void);
/** The job ends once this process has, as no replacement could go on, and `ronde run` says `why`.
 * RONDE_E_USAGE where ronde_is_elastic() is 0. */
RONDE_C_API int ronde_fail_job(const char* why);

/** Fails the group on purpose: every rank gets a RONDE_E_GROUP that has this rank and `text`. */
RONDE_C_API int ronde_abort(const char* text);

/** Whether the group or world of a process set has failed. RONDE_OK: no, and `rank` becomes -1.
 * RONDE_E_GROUP, with the text of the failure: yes, and `rank` becomes that of the group that
 * failed first, or -1 where none can be named. */
RONDE_C_API int ronde_failed_rank(uint32_t set, int* rank);

/** Has `fn` called when operations stall, in the group of the next ronde_init() and worlds that are
 * made later; NULL: nothing is. RONDE_E_USAGE between ronde_init() and ronde_shutdown(). */
RONDE_C_API int ronde_set_stall_callback(ronde_stall_fn fn, void* context);

/** The number of this rank within a process set; RONDE_E_NOT_A_MEMBER if it is not in it. */
RONDE_C_API int ronde_rank(uint32_t set, int* rank);
/** How many ranks a process set has. */
RONDE_C_API int ronde_size(uint32_t set, int* size);
/** The number of this rank among the ranks of its host, and their number; and its number among the
 * ranks of all hosts that have the same local rank, and their number.
 * @{ */
RONDE_C_API int ronde_local_rank(int* rank);
RONDE_C_API int ronde_local_size(int* size);
RONDE_C_API int ronde_cross_rank(int* rank);
RONDE_C_API int ronde_cross_size(int* size);
/** @} */
/** 1 if every host has the same number of ranks, else 0. */
RONDE_C_API int ronde_is_homogeneous(int* homogeneous);

/** @name Process sets
 * A process set is an ordered subset of the ranks that runs operations among its members. Set 0 is
 * all ranks. Functions that make or remove a set block until all ranks that take part have called
 * them, and are not for callbacks. Where a rank does not call within RONDE_STALL_ABORT_S (600
 * unless it is set) the group fails. Errors are a RONDE_E_USAGE on all ranks that take part.
 * @{ */

/** Called by all ranks of the group, with the same ranks, in the same order as others of these
 * calls. */
RONDE_C_API int ronde_process_set_add(const int* ranks, int count, uint32_t* set);
/** Called by the members alone. Calls for the same ranks match in their order. Calls that may
 * overtake each other need different tags; `tag` may be NULL. */
RONDE_C_API int ronde_process_set_create(const int* ranks, int count, const char* tag,
                                         uint32_t* set);
/** Called by the ranks that made it. Refused while a rank has an operation in flight in the set. */
RONDE_C_API int ronde_process_set_remove(uint32_t set);
/** The sets of ronde_init() that this rank knows, RONDE_ALL_RANKS included, oldest first. `count`
 * is the room in `ids`, and becomes the number of sets, also with RONDE_E_TOO_SMALL. `ids` may be
 * NULL. */
RONDE_C_API int ronde_process_set_ids(uint32_t* ids, int* count);
/** The ranks (of the whole group) of a set, in its order; `count` and NULL as above. */
RONDE_C_API int ronde_process_set_ranks(uint32_t set, int* ranks, int* count);
/** 1 if this rank is in the set, else 0. */
RONDE_C_API int ronde_process_set_included(uint32_t set, int* included);
/** @} */

/** @name Worlds
 * A world is a group of ranks beside that of ronde_init() or without it, with its own thread, links
 * and failures. A process may be in many. Its number, from 2^31 on, is that of the process set of
 * all its ranks, and can be used for any process set. Data moves through shared memory, and between
 * hosts by UCX, never by MPI. Processes that are in the same worlds make them in the same order.
 * @{ */

/** Called by each of the ranks that `options` choose, by one of mpi_comm, mpi_ranks and size; fails
 * as ronde_init(). `name` is equal on all ranks and stands in logs, errors and names of files: up
 * to 40 letters, digits, '.', '_' and '-', no other world of this process has it. MPI is called
 * until this returns and not after it, whatever its thread level. */
RONDE_C_API int ronde_world_make(const char* name, const ronde_init_options* options,
                                 uint32_t* world);
/** Makes a world of ranks of a process set or world, numbered as in it, in this order. They alone
 * call it. RONDE_E_GROUP if one does not within RONDE_INIT_TIMEOUT_S. */
RONDE_C_API int ronde_world_make_within(const char* name, uint32_t set, const int* ranks, int count,
                                        uint32_t* world);
/** As ronde_shutdown(), for this world alone: its ranks call it together. Afterwards, functions
 * that take a world return RONDE_E_UNKNOWN_SET, and those that take a set RONDE_E_NOT_INITIALIZED.
 */
RONDE_C_API int ronde_world_shutdown(uint32_t world);
/** The same, with a limit as ronde_shutdown_within(). */
RONDE_C_API int ronde_world_shutdown_within(uint32_t world, double seconds);
/** As ronde_abort(), for this world alone. */
RONDE_C_API int ronde_world_abort(uint32_t world, const char* text);
/** The number of this rank among the ranks of the world on its host, and their number. */
RONDE_C_API int ronde_world_local(uint32_t world, int* rank, int* size);
/** As ronde_process_set_add() and ronde_process_set_create(), among the ranks of a world.
 * @{ */
RONDE_C_API int ronde_world_process_set_add(uint32_t world, const int* ranks, int count,
                                            uint32_t* set);
RONDE_C_API int ronde_world_process_set_create(uint32_t world, const int* ranks, int count,
                                               const char* tag, uint32_t* set);
/** @} */
/** @} */

/** @name Operations
 * Functions that start an operation return at once and give a work, to be freed by
 * ronde_work_free(). Errors that this rank alone can detect are the code of the call; within a
 * group (see ronde_group_begin()), those that the engine detects (a name that is in flight, a
 * factor that is NaN) are the code of ronde_group_end(). Errors that only the ranks together can
 * detect are the code of ronde_work_wait().
 *
 * - in, out: `out` may be `in`, or have the same data. For allgather, alltoall and reducescatter on
 *   the CPU the data may overlap anywhere, which costs a copy of the input but where the smaller of
 *   both is this rank's own part of the larger; in all others, and on a GPU, they are equal or
 *   apart. Both have the same dtype, device and stream. The call does not change the structs, and
 *   needs them no longer than it runs; the work needs the data until it is done.
 * - A result that has more elements than `out` has room for is a RONDE_E_TOO_SMALL, and nothing is
 *   written. Of allreduce, reduce, broadcast and recv it is that of the call, which starts nothing;
 *   of the others that of the work, on this rank alone: the other ranks get their results.
 * - For allgather, alltoall and reducescatter `out` may be NULL: then `allocate` of the options
 *   gives the memory of the result. Without it the work owns the result, see ronde_work_output();
 *   on a GPU that is RONDE_E_UNSUPPORTED.
 * - options: NULL means RONDE_OPERATION_OPTIONS_INIT.
 * - A scalar has no rows to divide or to join: RONDE_E_USAGE of the work.
 * - Where the group has no backend for GPUs, buffers there are a RONDE_E_USAGE with the reason.
 *
 * Every rank of the set submits the same: shape (but for the first dimension of an allgather or
 * alltoall), dtype, op, wire dtype, factors and root. Disagreement is a RONDE_E_USAGE of the work
 * on every rank.
 * @{ */

/** out = the reduction over all ranks of in. */
RONDE_C_API int ronde_allreduce(const ronde_tensor* in, ronde_tensor* out,
                                const ronde_operation_options* options, ronde_work* work);

/** out of rank `root` = the reduction over all ranks of in. On the other ranks nothing is written,
 * `out` may be NULL, and the work has no output. */
RONDE_C_API int ronde_reduce(const ronde_tensor* in, ronde_tensor* out,
                             const ronde_operation_options* options, ronde_work* work);

/** out = the input of rank `root`. `in` has the same shape on all ranks, and its data may be NULL
 * on the others; or it is NULL, and `out` is what the root sends. */
RONDE_C_API int ronde_broadcast(const ronde_tensor* in, ronde_tensor* out,
                                const ronde_operation_options* options, ronde_work* work);

/** out = the tensors of all ranks, one after the other along the first dimension, which may differ
 * between ranks. */
RONDE_C_API int ronde_allgather(const ronde_tensor* in, ronde_tensor* out,
                                const ronde_operation_options* options, ronde_work* work);

/** Rank r gets splits[r] rows (of the first dimension) of this rank's, one rank's after the
 * other's. The result has the rows of ronde_work_splits(). */
RONDE_C_API int ronde_alltoall(const ronde_tensor* in, ronde_tensor* out,
                               const ronde_operation_options* options, ronde_work* work);

/** out = this rank's part of the reduction over all ranks of in. Of `rows` rows and n ranks, rank r
 * gets rows / n, and one more if r < rows % n. */
RONDE_C_API int ronde_reducescatter(const ronde_tensor* in, ronde_tensor* out,
                                    const ronde_operation_options* options, ronde_work* work);

/** A message to rank `peer` of the set; `out` is NULL. Matched as in MPI, by peers and `tag`:
 * messages of one tag from one rank to another do not overtake each other. Both ends agree on dtype
 * and on how many elements there are, which may be none; shapes may differ. A rank sends nothing to
 * itself: RONDE_E_USAGE.
 *
 * Nothing is buffered: a send is done when the other rank has taken it. Two ranks that each wait
 * for a send to the other before they receive wait for ever; let them start both and then wait. */
RONDE_C_API int ronde_send(const ronde_tensor* in, ronde_tensor* out,
                           const ronde_operation_options* options, ronde_work* work);
/** The other end: `in` is NULL, and the shape of `out` is what comes, from `peer` or from RONDE_ANY
 * (ronde_work_source() says whom). */
RONDE_C_API int ronde_recv(const ronde_tensor* in, ronde_tensor* out,
                           const ronde_operation_options* options, ronde_work* work);

/** Persistent operations, as MPI_Allreduce_init and MPI_Start: checked once, so that each start
 * costs less than a call of ronde_allreduce(). A start matches such a call on other ranks, and
 * disagreement is a RONDE_E_USAGE of the work. They are not for groups (RONDE_E_UNSUPPORTED).
 *
 * Nothing is sent before the first start. The handle is to be freed by ronde_persistent_free(),
 * which does not disturb an operation in flight.
 * @{ */
RONDE_C_API int ronde_allreduce_init(const ronde_tensor* in, ronde_tensor* out,
                                     const ronde_operation_options* options,
                                     ronde_persistent* persistent);
RONDE_C_API int ronde_broadcast_init(const ronde_tensor* in, ronde_tensor* out,
                                     const ronde_operation_options* options,
                                     ronde_persistent* persistent);
/** Starts the operation, on other data of the same shape where `in` or `out` is not NULL: both or
 * neither where it was prepared in place. RONDE_E_DUPLICATE_NAME while a start before of one with a
 * name is in flight (those without are matched by the order of calls); RONDE_E_USAGE after
 * ronde_shutdown() or the end of its process set: then prepare it again. */
RONDE_C_API int ronde_start(ronde_persistent persistent, const void* in, void* out,
                            ronde_work* work);
/** RONDE_OK for NULL; RONDE_E_INVALID_HANDLE for a handle that was freed before. */
RONDE_C_API int ronde_persistent_free(ronde_persistent persistent);
/** @} */

/** The work is done once every rank of the set has called it. Uses the options name, process_set
 * and timeout_s. */
RONDE_C_API int ronde_barrier(const ronde_operation_options* options, ronde_work* work);

/** This rank has no more data: until all ranks of the set have joined, it contributes the neutral
 * element to their reductions. Done when all have; see ronde_work_last_rank().
 *
 * Until then this rank can submit nothing more to the set: RONDE_E_USAGE. The others may go on with
 * allreduces, reduces, reducescatters and barriers; allgathers, broadcasts, alltoalls and messages
 * are RONDE_E_USAGE of the work. An average divides by the number of ranks that have not joined, or
 * by that of all where RONDE_JOIN_AVERAGE is "all". */
RONDE_C_API int ronde_join(uint32_t set, ronde_work* work);

/** Until ronde_group_end(), collectives that this thread submits to this set give works, but are
 * not started. ronde_group_end() starts all or none: they begin together once every rank has
 * submitted the whole group, and if one is refused all are. `work` is that of the group: it is done
 * when all are, with the first error among them.
 *
 * The set is one that this rank is in (RONDE_E_NOT_A_MEMBER), and a thread has one group open at
 * most (RONDE_E_USAGE).
 * Barrier, join, send and recv on the set are not for groups (RONDE_E_UNSUPPORTED), and waiting for
 * a work of a group that is open, or asking for its result, is a RONDE_E_USAGE; a call that failed
 * is not part of the group, which stays open. If ronde_group_end() fails, so do the works, with the
 * same text; so do those of a group that is open when its thread ends, when the callback returns
 * that began it, or at ronde_shutdown(), and then ronde_group_end() says so.
 *
 * A callback (ronde_work_on_done()) does not use the group of the thread that it runs on: its
 * operations are not part of that group, and a group that it begins is its own. */
RONDE_C_API int ronde_group_begin(uint32_t set);
/** Ends what ronde_group_begin() began. */
RONDE_C_API int ronde_group_end(ronde_work* work);
/** Drops the open group of this thread: none of its operations is started, and its works fail with
 * RONDE_E_USAGE. For a program whose call within the group failed. */
RONDE_C_API int ronde_group_cancel(void);
/** @} */

/** @name Works
 * A work lives from the call that gave it until ronde_work_free(), whatever happens to the
 * operation and to the group of ranks. Several threads may wait for one while another frees it: the
 * waits continue.
 * @{ */

/** 1 if the operation is done or has failed, else 0; never blocks. */
RONDE_C_API int ronde_work_done(ronde_work work, int* done);

/** Blocks until done, at most `timeout_s` seconds; a negative number waits for ever. Returns the
 * operation's error, each time; RONDE_E_TIMEOUT if it is not done. A thread that is in a callback
 * of ronde_work_on_done() must not wait for what is not done: RONDE_E_USAGE. A signal does not end
 * it, as the thread may do the engine's work meanwhile: where one must, wait 0.1 s at a time, or by
 * ronde_queue_next(). */
RONDE_C_API int ronde_work_wait(ronde_work work, double timeout_s);

/** For buffers on a GPU: blocks until the result is queued there, which is before it is in memory,
 * and has what is queued in `stream` (of the same GPU; a cudaStream_t, NULL is the default one)
 * from now on run after it. What fails on the GPU later fails the group. Of buffers on the CPU it
 * is ronde_work_wait(), for ever. */
RONDE_C_API int ronde_work_wait_stream(ronde_work work, void* stream);

/** Calls `fn` once the work is done. */
RONDE_C_API int ronde_work_on_done(ronde_work work, ronde_done_fn fn, void* context);

/** For a work that succeeded: where its result is, its shape (room for RONDE_MAX_DIMS numbers) and
 * type. Each pointer may be NULL. Where the work owns the result (`out` and `allocate` were NULL)
 * the memory is valid until ronde_work_free(); it is aligned to 64 bytes, and NULL where there are
 * no elements. Else it is the data of `out`, or what `allocate` returned. Not for barriers, sends,
 * joins and groups: RONDE_E_INVALID_ARGUMENT, as for the following three. */
RONDE_C_API int ronde_work_output(ronde_work work, void** data, int* dims, int64_t* shape,
                                  int* dtype);
/** For an alltoall: the rows that came from each rank of the set; `splits` has room for one number
 * for each of them. */
RONDE_C_API int ronde_work_splits(ronde_work work, int64_t* splits);
/** For a recv: the rank that the message came from. */
RONDE_C_API int ronde_work_source(ronde_work work, int* rank);
/** For a join: the rank that joined last. */
RONDE_C_API int ronde_work_last_rank(ronde_work work, int* rank);

/** Where the work failed with RONDE_E_DEADLINE: the ranks that had not submitted it by then, by
 * their numbers in its process set, ascending; of a message, those that may have sent or received
 * it. None where it ended otherwise. `count` and NULL as for ronde_process_set_ids(). */
RONDE_C_API int ronde_work_missing_ranks(ronde_work work, int* ranks, int* count);

/** Frees the handle. An operation that is not done continues, and its buffers stay in use until the
 * callback of ronde_work_on_done(), to be set before. An error that was never returned is logged.
 * RONDE_E_INVALID_HANDLE for a work that was freed before; RONDE_OK for NULL. */
RONDE_C_API int ronde_work_free(ronde_work work);
/** @} */

/** @name Queues
 * A queue tells which of many works are done, to threads that wait for any of them or poll a
 * descriptor, without a callback on Ronde's thread. Works may be of any group and world, and be
 * freed before they are done; the queue may be freed before they are, too.
 * @{ */

/** Makes a queue, to be freed by ronde_queue_free(). */
RONDE_C_API int ronde_queue_make(ronde_queue* queue);
/** Has ronde_queue_next() give `token` once the work is done, also where it failed
 * (ronde_work_wait() says so). Hurries no operation: those that are gathered begin after
 * RONDE_CYCLE_TIME_MS, unless a thread waits for one; ronde_work_wait(work, 0) does it as well. */
RONDE_C_API int ronde_queue_add(ronde_queue queue, ronde_work work, uint64_t token);
/** Gives the token that has been in the queue longest, once there is one, after at most `timeout_s`
 * seconds; a negative number waits for ever. RONDE_E_TIMEOUT if none came; RONDE_E_INTERRUPTED if a
 * signal handler ran on this thread before. Not in callbacks, but with 0: RONDE_E_USAGE. */
RONDE_C_API int ronde_queue_next(ronde_queue queue, double timeout_s, uint64_t* token);
/** A descriptor that is readable while there are tokens, for poll(), select() and epoll. It is the
 * queue's: neither to be read nor closed. */
RONDE_C_API int ronde_queue_descriptor(ronde_queue queue, int* descriptor);
/** Frees the handle, as ronde_work_free(). Threads that wait in ronde_queue_next() continue. */
RONDE_C_API int ronde_queue_free(ronde_queue queue);
/** @} */

/** Writes statistics of this rank: a JSON object of "layout_version" and parts, each an object of
 * counters, with a NUL at its end. RONDE_E_TOO_SMALL if that is longer than `size` bytes, and
 * nothing is written; 65536 mostly do. */
RONDE_C_API int ronde_stats_json(char* buffer, size_t size);

/** Writes a timeline from now on, as RONDE_TIMELINE=`path` does from init on; RONDE_E_USAGE if one
 * is being written. Steps are marked by ronde_mark_step(), so that `mark_cycles` changes nothing.
 * @{ */
RONDE_C_API int ronde_timeline_start(const char* path, int mark_cycles);
RONDE_C_API int ronde_timeline_stop(void);
/** @} */

/** Marks the end of a training step of so many samples of this rank, for the figures in
 * ronde_stats_json(), RONDE_PROFILE and the timeline. */
RONDE_C_API int ronde_mark_step(uint64_t samples);
/** Records a number at this time, such as the loss, for the run report and the timeline.
 * RONDE_E_USAGE for an empty name, or one of more than 64 bytes. */
RONDE_C_API int ronde_record(const char* name, double value);

#ifdef __cplusplus
}
#endif

#endif
