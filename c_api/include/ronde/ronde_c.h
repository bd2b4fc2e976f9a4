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
 * then Ronde may use them, and refuses an operation that would write what another one in flight
 * uses, or read what another one writes (RONDE_E_USAGE). What is queued in a stream after
 * ronde_work_wait_stream() may use those on a GPU before that.
 *
 * Processes. The group is that of the process that called ronde_init(), a world that of the process
 * that made it: a child of fork() cannot use them.
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

/** Why the last call on this thread that failed did so; "" if none has. Never NULL. Valid until the
 * next call on this thread that fails, or its end. */
RONDE_C_API const char* ronde_last_error(void);

/** "0.1.0". A constant. */
RONDE_C_API const char* ronde_version(void);

/** 1 if this library can do `feature` on this machine, 0 if not, or if it has never heard of it, or
 * for NULL.
 * Features: "shm" (ranks of one host), "mpi" (an MPI launcher), "hierarchical" (ranks of
 * several hosts), "ucx" (several hosts without MPI),
 * "mpi_communicator" (ronde_init_options.mpi_comm and .mpi_ranks), "key_value" (.put and .get),
 * "process_sets", "send_recv", "groups", "join", "streams", "cuda" (buffers on GPUs: the driver can
 * be loaded), "nccl" (and NCCL, too), "timeline", "worlds". Needs no ronde_init(). */
RONDE_C_API int ronde_has(const char* feature);
/** 0 where ronde_has() is 0. Of "cuda" the version of the driver (12080 is CUDA 12.8), of "nccl"
 * that of NCCL (22304 is 2.23.4); of others 1, and more once they can do more. */
RONDE_C_API int ronde_feature_version(const char* feature);

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

/** This rank within a process set; RONDE_E_NOT_A_MEMBER if it is not in it. */
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
/** The sets of ronde_init() that this rank knows, RONDE_ALL_RANKS included, oldest first. `count`
 * is how many `ids` has room for, and becomes how many there are, also with RONDE_E_TOO_SMALL. With
 * `ids` NULL only that. */
RONDE_C_API int ronde_process_set_ids(uint32_t* ids, int* count);
/** The ranks (of the whole group) of a set, in its order; `count` and a NULL as above. */
RONDE_C_API int ronde_process_set_ranks(uint32_t set, int* ranks, int* count);
/** 1 if this rank is in the set, else 0. */
RONDE_C_API int ronde_process_set_included(uint32_t set, int* included);
/** @} */

/** @name Worlds
 * A world is a group of ranks of its own, beside that of ronde_init() or without it: a runtime with
 * its own thread, links and failures. A process may be in many. It is named by the number of the
 * process set of all its ranks, from 2^31 on, which stands wherever a process set is asked for.
 * Data moves through shared memory, and between hosts by UCX, never by MPI. A process that makes
 * several makes them in the same order as others that are in them, too.
 * @{ */

/** Called by each of the ranks that `options` choose, by one of mpi_comm, mpi_ranks and size; fails
 * as ronde_init(). `name` is equal on all ranks and stands in logs, errors and names of files: up
 * to 40 letters, digits, '.', '_' and '-', no other world of this process has it. MPI is called
 * until this returns and not after it, whatever its thread level. */
RONDE_C_API int ronde_world_make(const char* name, const ronde_init_options* options,
                                 uint32_t* world);
/** The same of ranks of a process set or world, numbered as in it, in this order; they alone call
 * it. RONDE_E_GROUP if one does not come within RONDE_INIT_TIMEOUT_S. */
RONDE_C_API int ronde_world_make_within(const char* name, uint32_t set, const int* ranks, int count,
                                        uint32_t* world);
/** As ronde_shutdown(), for this world alone: its ranks call it together. After it, calls that take
 * a world give RONDE_E_UNKNOWN_SET, and those that take a set RONDE_E_NOT_INITIALIZED. */
RONDE_C_API int ronde_world_shutdown(uint32_t world);
/** As ronde_abort(), for this world alone. */
RONDE_C_API int ronde_world_abort(uint32_t world, const char* text);
/** This rank among those of the world on its host, and how many these are. */
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
 * All that start an operation return at once and give a work, to be freed by ronde_work_free().
 * What this rank alone can see to be wrong is the code of the call, or, within a group (see
 * ronde_group_begin()) and where the engine has to look (a name that is in flight, a factor that is
 * NaN), of ronde_group_end(). What only the ranks together can see is the code of
 * ronde_work_wait().
 *
 * - in, out: `out` may be `in`, or have the same data. For allgather, alltoall and reducescatter on
 *   the CPU the data may overlap anywhere, which costs a copy of the input but where the smaller of
 *   both is this rank's own part of the larger; in all others, and on a GPU, they are equal or
 *   apart. Both have the same dtype, device and stream. The call does not change the structs, and
 *   needs them no longer than it runs; the work needs the data until it is done.
 * - A result that has more elements than `out` has room for is a RONDE_E_TOO_SMALL, and nothing is
 *   written. Of allreduce, broadcast and recv it is that of the call, which starts nothing; of the
 *   others that of the work, on this rank alone: the other ranks get their results.
 * - For allgather, alltoall and reducescatter on the CPU `out` may be NULL: then the work owns the
 *   result, see ronde_work_output(). On a GPU that is RONDE_E_UNSUPPORTED.
 * - options: NULL means RONDE_OPERATION_OPTIONS_INIT.
 * - A scalar has no rows to divide or to join: RONDE_E_USAGE of the work.
 * - Where the group has no backend for GPUs, buffers there are a RONDE_E_USAGE that says why.
 *
 * Every rank of the set submits the same: shape (but for the first dimension of an allgather or
 * alltoall), dtype, op, wire dtype, factors and root. Disagreement is a RONDE_E_USAGE of the work
 * on every rank.
 * @{ */

/** out = the reduction over all ranks of in. */
RONDE_C_API int ronde_allreduce(const ronde_tensor* in, ronde_tensor* out,
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

/** Persistent operations, in the way of MPI_Allreduce_init and MPI_Start: checked and described
 * once, so that each start costs less than a call of ronde_allreduce(). For the ranks a start is
 * that call: some may start what others call, and disagreement is a RONDE_E_USAGE of the work. They
 * are not for groups (RONDE_E_UNSUPPORTED).
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
/** NULL is nothing to free, and RONDE_OK; what was freed before is a RONDE_E_INVALID_HANDLE. */
RONDE_C_API int ronde_persistent_free(ronde_persistent persistent);
/** @} */

/** Done once every rank of the set has called it. Of the options name, process_set and timeout_s
 * count. */
RONDE_C_API int ronde_barrier(const ronde_operation_options* options, ronde_work* work);

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
 * The set is one that this rank is in (RONDE_E_NOT_A_MEMBER), and a thread has one group open at
 * most (RONDE_E_USAGE).
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
/** Drops the group that this thread has open: nothing of it is started, and its works fail with
 * RONDE_E_USAGE. For a program whose call within the group failed. */
RONDE_C_API int ronde_group_cancel(void);
/** @} */

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

/** For buffers on a GPU: blocks until the result is queued there, which is before it is in memory,
 * and has what is queued in `stream` (of the same GPU; a cudaStream_t, NULL is the default one)
 * from now on run after it. What fails on the GPU later fails the group. Of buffers on the CPU it
 * is ronde_work_wait(), for ever. */
RONDE_C_API int ronde_work_wait_stream(ronde_work work, void* stream);

/** Has `fn` called once the work is done. */
RONDE_C_API int ronde_work_on_done(ronde_work work, ronde_done_fn fn, void* context);

/** For a work that succeeded: where its result is, its shape (room for RONDE_MAX_DIMS numbers) and
 * type. Each pointer may be NULL. Where the work owns the result (`out` was NULL) the memory is
 * valid until ronde_work_free(); it is aligned to 64 bytes, and NULL where there are no elements.
 * Else it is the data of `out`. Not for barriers, sends, joins and groups:
 * RONDE_E_INVALID_ARGUMENT, as for the following three. */
RONDE_C_API int ronde_work_output(ronde_work work, void** data, int* dims, int64_t* shape,
                                  int* dtype);
/** For an alltoall: the rows that came from each rank of the set; `splits` has room for one number
 * for each of them. */
RONDE_C_API int ronde_work_splits(ronde_work work, int64_t* splits);
/** For a recv: the rank that the message came from. */
RONDE_C_API int ronde_work_source(ronde_work work, int* rank);
/** For a join: the rank that joined last. */
RONDE_C_API int ronde_work_last_rank(ronde_work work, int* rank);

/** Ends the handle, not the operation: one that is not done goes on, and its buffers stay in use.
 * When it is done is then known from ronde_work_on_done() alone, so set that before. An error that
 * nobody has asked for is logged. A work that was freed before is a RONDE_E_INVALID_HANDLE; NULL is
 * nothing to free, and RONDE_OK. */
RONDE_C_API int ronde_work_free(ronde_work work);
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

/** A step of training has ended, in which this rank worked on so many samples: for the figures in
 * ronde_stats_json(), RONDE_PROFILE and the timeline. */
RONDE_C_API int ronde_mark_step(uint64_t samples);

#ifdef __cplusplus
}
#endif

#endif
