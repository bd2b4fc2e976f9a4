/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_RONDE_C_TYPES_H
#define RONDE_RONDE_C_TYPES_H

/** @file
 * The numbers and structs of Ronde's C interface. A program that loads the library by dlopen()
 * needs this header alone, others <ronde/ronde_c.h>. No number ever changes its meaning. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Codes that functions return. */
enum ronde_status {
  RONDE_OK = 0,
  /** An argument of this very call is wrong: NULL, a number out of range. Nothing was started. */
  RONDE_E_INVALID_ARGUMENT = 1,
  /** A work that was freed already, or never was one. */
  RONDE_E_INVALID_HANDLE = 2,
  /** Before ronde_init(), after ronde_shutdown(), or for a world after its end. */
  RONDE_E_NOT_INITIALIZED = 3,
  /** The call is invalid in this state, or the ranks disagree (the text then has what each of them
   * sent). The group continues. */
  RONDE_E_USAGE = 4,
  /** The group of ranks has failed: the text names the rank that failed first (as a number:
   * ronde_failed_rank()). Every pending and later operation fails with it. What still works is
   * ronde_shutdown(), after it another ronde_init() where that may be called twice, and to end the
   * process. Of a world, that world alone has failed. */
  RONDE_E_GROUP = 5,
  /** Not done within the time given. The operation continues: wait again. */
  RONDE_E_TIMEOUT = 6,
  /** This version or build of Ronde cannot do it. */
  RONDE_E_UNSUPPORTED = 7,
  /** No memory for a call, or for the result of a work: this rank alone loses it, and the group
   * continues. */
  RONDE_E_OUT_OF_MEMORY = 8,
  /** The result of a work was asked for that is not done: wait first. */
  RONDE_E_PENDING = 9,
  /** The caller's memory is too small for the result; the text has the size. Of a work, this rank
   * alone fails: the others have their results, and the group continues. */
  RONDE_E_TOO_SMALL = 10,
  /** A mistake in Ronde, or in a callback or backend of the program's. */
  RONDE_E_INTERNAL = 11,
  /** The name of an operation that is still in flight. The group continues. */
  RONDE_E_DUPLICATE_NAME = 12,
  /** A process set or world that does not exist on this rank, or was removed. The group continues.
   */
  RONDE_E_UNKNOWN_SET = 13,
  /** A process set that this rank is not in. The group continues. */
  RONDE_E_NOT_A_MEMBER = 14,
  /** The timeout_s of an operation passed on a rank before all ranks had submitted it:
   * ronde_work_missing_ranks() has those that had not. The group continues. */
  RONDE_E_DEADLINE = 15,
  /** A signal handler ran on the thread that waits. Nothing is harmed: wait again. */
  RONDE_E_INTERRUPTED = 16
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
  RONDE_BOOL = 9, /**< one byte, zero is false */
  RONDE_U16 = 10,
  RONDE_U32 = 11,
  RONDE_U64 = 12,
  RONDE_C64 = 13, /**< complex: the real and the imaginary part, each an f32 */
  RONDE_C128 = 14 /**< the same of f64 */
};

/** Reductions. Sums and products of integers wrap; of bools, the sum is "or", the product is "and",
 * and there is no average; minimum and maximum pass NaN on. Complex numbers are combined by their
 * real and imaginary parts, by sum, average and Adasum alone. */
enum ronde_op {
  RONDE_SUM = 0,
  RONDE_AVERAGE = 1,
  RONDE_MIN = 2,
  RONDE_MAX = 3,
  RONDE_PRODUCT = 4,
  RONDE_ADASUM = 5,  /**< allreduces of floating point only: Adasum of whole buffers */
  RONDE_BIT_AND = 6, /**< this and the next two: integers and bools on the CPU */
  RONDE_BIT_OR = 7,
  RONDE_BIT_XOR = 8
};

/** Numbers with a meaning of their own. */
enum {
  RONDE_ALL_RANKS = 0,          /**< the process set that is always there */
  RONDE_CPU = -1,               /**< the device of buffers in host memory */
  RONDE_ANY = -1,               /**< the peer of a recv that takes what any rank sends */
  RONDE_NO_DTYPE = -1,          /**< a dtype that is not set */
  RONDE_CAPACITY_OF_SHAPE = -1, /**< as many elements as the shape has */
  RONDE_MAX_DIMS = 8            /**< the most dimensions of a shape */
};

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
/** A ronde_get_fn returns it for a key that is not there. */
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

  /** Process sets that are made at the start, equal on all ranks. They get the numbers 1, 2, ...
   * in the first start of a process, and others later; those of RONDE_PROCESS_SETS follow.
   * @{ */
  const ronde_rank_list* process_sets;
  int process_set_count;
  /** @} */

  /** Not NULL: the Fortran handle (MPI_Comm_c2f()) of the communicator whose ranks make the group,
   * and all call ronde_init(). MPI was initialised before; below MPI_THREAD_MULTIPLE, ronde_init()
   * is called on the thread that may call MPI, and Ronde never calls MPI after it. The communicator
   * may be freed after ronde_init(). */
  const int* mpi_comm;
  /** count > 0: these ranks of MPI_COMM_WORLD make the group, in this order, and alone call
   * ronde_init(); MPI was initialised before, as for mpi_comm, by all processes of the job. */
  ronde_rank_list mpi_ranks;

  /** size > 0: no MPI launcher. This is rank `rank` of `size`, and number `local_rank` among those
   * of its host, in the order of ranks. There is no default for it: a number that is not right is
   * RONDE_E_USAGE on every rank, so give -1 where it is not known. Control plane and data go
   * through sockets and shared memory, and between hosts by UCX; without it ranks on several hosts
   * are refused on every rank, RONDE_E_USAGE. MPI is not touched, and ronde_init() may be called
   * again after ronde_shutdown().
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
  /** Prefix of every key; NULL: "ronde". Must be unique per start, as the store still holds the
   * addresses of the last one, and equal on all ranks. */
  const char* prefix;
} ronde_init_options;

/** One operation that was started, or a group of them. Opaque: a number that is stored as a pointer
 * and never dereferenced. A handle that was freed is recognised. NULL is none. */
typedef struct ronde_work_s* ronde_work;

/** An operation that is prepared once and started many times. Opaque, as a ronde_work. */
typedef struct ronde_persistent_s* ronde_persistent;

/** Called once, when the operation is done: `status` is its code, and ronde_last_error() has the
 * text within the call. On a thread of Ronde's, one that waits, or at once on this one if it is
 * done. It may submit operations, but must neither block nor throw: what a callback in C++ throws
 * is logged. `context` is needed until it has returned; it is called also where the work was freed
 * meanwhile. */
typedef void (*ronde_done_fn)(void* context, int status);

/** Tells of works that are done. Opaque, as a ronde_work. */
typedef struct ronde_queue_s* ronde_queue;

/** Returns memory for a result of this shape, of the work's dtype and on its device; NULL, unless
 * there are no elements, fails the work on this rank alone: RONDE_E_OUT_OF_MEMORY. Called once, as
 * a ronde_done_fn: it must not block. On a GPU, what is queued in the tensor's stream by then may
 * use the memory until then. */
typedef void* (*ronde_allocate_fn)(void* context, const int64_t* shape, int dims);

/** An operation that some ranks wait for and others have not submitted. Valid during the call. */
typedef struct ronde_stall {
  size_t struct_size; /**< sizeof(ronde_stall) in the library */
  const char* name;   /**< "" if it has none */
  const char* text;   /**< for people: "allreduce 'x'" */
  double waiting_s;   /**< since rank 0 has known of it */
  /** Ranks of the whole group or world, ascending, also of an operation in a process set.
   * @{ */
  ronde_rank_list submitted;
  ronde_rank_list missing;
  /** @} */
} ronde_stall;

/** Called for each operation that stalls: when rank 0 finds it older than RONDE_STALL_WARN_S, or
 * does not answer for longer, and again each time that period passes. On every rank, on a thread of
 * Ronde's or one that waits: it must neither block nor throw. */
typedef void (*ronde_stall_fn)(void* context, const ronde_stall* stall);

/** Dense, row-major memory of the caller's. RONDE_TENSOR_INIT makes one that lacks data, shape and
 * dtype. Zeroed memory is none (RONDE_E_INVALID_ARGUMENT), as zeros would mean a u8 on GPU 0.
 *
 * A program that was compiled with an older header, whose struct is smaller, works with this
 * library: the fields that it lacks have their defaults. One with a newer header does, too, as long
 * as the fields that this library does not know are zero, which is their default:
 * RONDE_E_UNSUPPORTED. The same holds for ronde_operation_options. */
typedef struct ronde_tensor {
  size_t struct_size;   /**< sizeof(ronde_tensor) */
  void* data;           /**< only read where it is an input; may be NULL without elements */
  const int64_t* shape; /**< `dims` numbers, copied; may be NULL for a scalar */
  int dims;             /**< 0 (a scalar) to RONDE_MAX_DIMS */
  int dtype;            /**< a ronde_dtype */
  int device;           /**< RONDE_CPU, or the ordinal of the GPU that `data` is on */
  /** On a GPU: the cudaStream_t in which the program's work on `data` is queued; NULL is the
   * default one. Nothing of it is touched before what is queued there at the call. NULL with
   * RONDE_CPU. */
  void* stream;
  /** For an output: how many elements `data` has room for. Its shape then does not matter. */
  int64_t capacity;
} ronde_tensor;

/** Initial value of a ronde_tensor. */
#define RONDE_TENSOR_INIT \
  { sizeof(ronde_tensor), NULL, NULL, 0, RONDE_NO_DTYPE, RONDE_CPU, NULL, RONDE_CAPACITY_OF_SHAPE }

/** How an operation is done. A field that an operation does not use must be valid all the same;
 * `splits` and `wire_dtype` are refused where they do not apply. */
typedef struct ronde_operation_options {
  size_t struct_size; /**< sizeof(ronde_operation_options) */
  /** Ranks match operations by it; one name is in flight once at a time, within its set. Copied.
   * NULL or "": matched by the order of calls within the set, which is that of one thread: until
   * the first that leaves names out has ended, other threads must give them, and callbacks always
   * (RONDE_E_USAGE), unless caller_orders says otherwise. Names that repeat from step to step cost
   * less than new ones. Not for messages. */
  const char* name;
  int op; /**< a ronde_op: allreduce, reduce, reducescatter */
  /** Allreduce or reduce of f32, f64 or complex numbers: RONDE_F16 or RONDE_BF16 halves what
   * travels between the ranks, at two roundings. RONDE_NO_DTYPE: it is sent as it is. */
  int wire_dtype;
  /** Factors before and after a reduction. A sum or average of integers of up to 32 bits has them
   * applied to its exact sum, in double precision, is truncated toward zero and clamped to the
   * type. Other reductions of integers refuse factors: convert to f64.
   * @{ */
  double prescale;
  double postscale;
  /** @} */
  int root;    /**< broadcast: the rank whose data all get; reduce: that gets the result */
  int peer;    /**< send, recv: the other rank; recv: or RONDE_ANY */
  int64_t tag; /**< send, recv: at least 0 */
  /** Alltoall: the rows that go to each rank of the set, `split_count` numbers, copied; they add up
   * to shape[0]. NULL and 0: equally many to each.
   * @{ */
  const int64_t* splits;
  int split_count;
  /** @} */
  uint32_t process_set; /**< the ranks that take part */
  /** How long the other ranks may take to submit their part; 0: for ever. Expiry before the
   * operation began is a RONDE_E_DEADLINE of the work, afterwards a RONDE_E_GROUP. */
  double timeout_s;
  /** 1, without a name: the program itself puts such calls of its threads and callbacks into one
   * order, the same on all ranks. Each has returned before the next one begins. */
  int caller_orders;
  /** Allgather, alltoall, reducescatter with `out` NULL: what gives the memory of the result, on
   * the CPU or a GPU. NULL: the work owns it. The context is needed until the work is done.
   * @{ */
  ronde_allocate_fn allocate;
  void* allocate_context;
  /** @} */
  /** A factor of this rank's own: its input counts as input * factor, rounded to its type, before
   * everything else. 0, the default: none. For reductions of floating-point and complex numbers on
   * the CPU, where the ranks need not agree on it. */
  double rank_factor;
} ronde_operation_options;

/** Initial value of ronde_operation_options: the sum over all ranks, without factors, splits,
 * timeout and callbacks; root 0, RONDE_ANY, tag 0. */
#define RONDE_OPERATION_OPTIONS_INIT                                                             \
  {                                                                                              \
    sizeof(ronde_operation_options), NULL, RONDE_SUM, RONDE_NO_DTYPE, 1.0, 1.0, 0, RONDE_ANY, 0, \
        NULL, 0, RONDE_ALL_RANKS, 0.0, 0, NULL, NULL, 0.0                                        \
  }

#ifdef __cplusplus
}
#endif

#endif
