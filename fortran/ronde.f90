! SPDX-License-Identifier: Apache-2.0
!
! Ronde for Fortran, over the C interface <ronde/ronde_c.h>. A .mod file belongs to one compiler, so
! this file is compiled with the program, which links ronde_c.
!
!   use ronde
!   call ronde_init(comm)                                  ! the ranks of an MPI communicator
!   call ronde_broadcast(field, root=0)                    ! in place, as all operations
!   call ronde_allreduce(field, RONDE_AVERAGE, 'field')
!   call ronde_shutdown()
!
! Arrays are of real32, real64, int32 or int64, and have up to 8 dimensions. Ranks count from 0.
! Every procedure sets the optional `ierr` to RONDE_OK or a RONDE_E_* code. Without `ierr`, an error
! is written to the error unit and ends the program (`error stop`).
!
! A program may be in further groups of ranks, worlds:
!
!   actor = ronde_world_make('actor', comm)                ! an integer, for `process_set`
!   call ronde_allreduce(field, process_set=actor)
!   call ronde_world_shutdown(actor)
!
! Worlds have negative numbers: C's are from 2**31 on, and these are the same 32 bits.
module ronde
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit, int32, int64, real32, real64
  implicit none
  private

  public :: ronde_init, ronde_shutdown, ronde_is_initialized, ronde_rank, ronde_size
  public :: ronde_allreduce, ronde_broadcast, ronde_error_message
  public :: ronde_process_set_add, ronde_process_set_remove, ronde_process_set_included
  public :: ronde_world_make, ronde_world_make_within, ronde_world_shutdown

  !> Reductions. Adasum is for reals, those of bits are for integers.
  integer, parameter, public :: RONDE_SUM = 0, RONDE_AVERAGE = 1, RONDE_MIN = 2, RONDE_MAX = 3, &
      RONDE_PRODUCT = 4, RONDE_ADASUM = 5, RONDE_BIT_AND = 6, RONDE_BIT_OR = 7, RONDE_BIT_XOR = 8
  !> The process set that is always there.
  integer, parameter, public :: RONDE_ALL_RANKS = 0
  !> Codes of `ierr`; ronde_c_types.h explains them.
  integer, parameter, public :: RONDE_OK = 0, RONDE_E_INVALID_ARGUMENT = 1, &
      RONDE_E_INVALID_HANDLE = 2, RONDE_E_NOT_INITIALIZED = 3, RONDE_E_USAGE = 4, &
      RONDE_E_GROUP = 5, RONDE_E_TIMEOUT = 6, RONDE_E_UNSUPPORTED = 7, RONDE_E_OUT_OF_MEMORY = 8, &
      RONDE_E_PENDING = 9, RONDE_E_TOO_SMALL = 10, RONDE_E_INTERNAL = 11, &
      RONDE_E_DUPLICATE_NAME = 12, RONDE_E_UNKNOWN_SET = 13, RONDE_E_NOT_A_MEMBER = 14, &
      RONDE_E_DEADLINE = 15, RONDE_E_INTERRUPTED = 16

  !> call ronde_allreduce(values [, op] [, name] [, process_set] [, ierr]): values becomes the
  !> reduction over the ranks, by default the sum. Ranks match their calls by name, or without names
  !> by order. Names that repeat from step to step cost least.
  interface ronde_allreduce
    module procedure allreduce_real32, allreduce_real64, allreduce_int32, allreduce_int64
  end interface ronde_allreduce

  !> call ronde_broadcast(values, root [, name] [, process_set] [, ierr]): values becomes that of
  !> `root`, a rank within the process set.
  interface ronde_broadcast
    module procedure broadcast_real32, broadcast_real64, broadcast_int32, broadcast_int64
  end interface ronde_broadcast

  integer(c_int), parameter :: i32 = 3, i64 = 4, f32 = 7, f64 = 8  ! of the enum ronde_dtype
  integer, parameter :: max_dims = 15  ! of Fortran; the library refuses more than 8

  ! The structs of ronde_c_types.h with the values of their _INIT macros. The library accepts those
  ! of older headers, so these may lack later fields.
  type, bind(C) :: c_init_options
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: process_sets = c_null_ptr
    integer(c_int) :: process_set_count = 0
    type(c_ptr) :: mpi_comm = c_null_ptr
  end type c_init_options

  type, bind(C) :: c_tensor
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: data = c_null_ptr, shape = c_null_ptr
    integer(c_int) :: dims = 0, dtype = -1, device = -1
    type(c_ptr) :: stream = c_null_ptr
    integer(c_int64_t) :: capacity = -1
  end type c_tensor

  type, bind(C) :: c_options
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: name = c_null_ptr
    integer(c_int) :: op = RONDE_SUM, wire_dtype = -1
    real(c_double) :: prescale = 1, postscale = 1
    integer(c_int) :: root = 0, peer = -1
    integer(c_int64_t) :: tag = 0
    type(c_ptr) :: splits = c_null_ptr
    integer(c_int) :: split_count = 0
    integer(c_int32_t) :: process_set = RONDE_ALL_RANKS
    real(c_double) :: timeout_s = 0
  end type c_options

  abstract interface
    integer(c_int) function c_operation(in, out, options, work) bind(C)
      import :: c_int, c_options, c_ptr, c_tensor
      type(c_tensor), intent(in) :: in, out  ! C writes to the data of `out`, not to the struct
      type(c_options), intent(in) :: options
      type(c_ptr), intent(out) :: work
    end function c_operation

    integer(c_int) function c_number_of_set(set, number) bind(C)
      import :: c_int, c_int32_t
      integer(c_int32_t), value :: set
      integer(c_int), intent(inout) :: number
    end function c_number_of_set

    integer(c_int) function c_call() bind(C)
      import :: c_int
    end function c_call

    integer(c_int) function c_call_with_set(set) bind(C)
      import :: c_int, c_int32_t
      integer(c_int32_t), value :: set
    end function c_call_with_set
  end interface

  procedure(c_operation), bind(C, name='ronde_allreduce') :: c_allreduce
  procedure(c_operation), bind(C, name='ronde_broadcast') :: c_broadcast
  procedure(c_number_of_set), bind(C, name='ronde_rank') :: c_rank
  procedure(c_number_of_set), bind(C, name='ronde_size') :: c_size
  procedure(c_number_of_set), bind(C, name='ronde_process_set_included') :: c_included
  procedure(c_call), bind(C, name='ronde_shutdown') :: c_shutdown
  procedure(c_call), bind(C, name='ronde_is_initialized') :: c_is_initialized
  procedure(c_call_with_set), bind(C, name='ronde_process_set_remove') :: c_set_remove
  procedure(c_call_with_set), bind(C, name='ronde_world_shutdown') :: c_world_shutdown

  interface
    integer(c_int) function c_init(options) bind(C, name='ronde_init')
      import :: c_init_options, c_int
      type(c_init_options), intent(in) :: options
    end function c_init

    type(c_ptr) function c_last_error() bind(C, name='ronde_last_error')
      import :: c_ptr
    end function c_last_error

    integer(c_int) function c_work_wait(work, timeout_s) bind(C, name='ronde_work_wait')
      import :: c_double, c_int, c_ptr
      type(c_ptr), value :: work
      real(c_double), value :: timeout_s
    end function c_work_wait

    integer(c_int) function c_work_free(work) bind(C, name='ronde_work_free')
      import :: c_int, c_ptr
      type(c_ptr), value :: work
    end function c_work_free

    integer(c_int) function c_set_add(ranks, count, set) bind(C, name='ronde_process_set_add')
      import :: c_int, c_int32_t
      integer(c_int), intent(in) :: ranks(*)
      integer(c_int), value :: count
      integer(c_int32_t), intent(inout) :: set
    end function c_set_add

    integer(c_int) function c_world_make(name, options, world) bind(C, name='ronde_world_make')
      import :: c_char, c_init_options, c_int, c_int32_t
      character(kind=c_char), intent(in) :: name(*)
      type(c_init_options), intent(in) :: options
      integer(c_int32_t), intent(inout) :: world
    end function c_world_make

    integer(c_int) function c_world_make_within(name, set, ranks, count, world) &
        bind(C, name='ronde_world_make_within')
      import :: c_char, c_int, c_int32_t
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int32_t), value :: set
      integer(c_int), intent(in) :: ranks(*)
      integer(c_int), value :: count
      integer(c_int32_t), intent(inout) :: world
    end function c_world_make_within

    integer(c_size_t) function c_strlen(text) bind(C, name='strlen')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
    end function c_strlen
  end interface

contains

  !> Joins the group: the ranks of the communicator `comm` (an integer; of mpi_f08 it is
  !> comm%mpi_val) after MPI_Init(), or without it all ranks that were launched.
  subroutine ronde_init(comm, ierr)
    integer, intent(in), optional :: comm
    integer, intent(out), optional :: ierr
    type(c_init_options) :: options
    integer(c_int), target :: handle
    options%struct_size = c_sizeof(options)
    if (present(comm)) then
      handle = int(comm, c_int)
      options%mpi_comm = c_loc(handle)
    end if
    call conclude(c_init(options), ierr)
  end subroutine ronde_init

  !> Leaves the group together with all other ranks.
  subroutine ronde_shutdown(ierr)
    integer, intent(out), optional :: ierr
    call conclude(c_shutdown(), ierr)
  end subroutine ronde_shutdown

  logical function ronde_is_initialized()
    ronde_is_initialized = c_is_initialized() == 1
  end function ronde_is_initialized

  !> This rank within a process set.
  integer function ronde_rank(process_set, ierr)
    integer, intent(in), optional :: process_set
    integer, intent(out), optional :: ierr
    ronde_rank = number_of_set(c_rank, process_set, ierr)
  end function ronde_rank

  !> How many ranks a process set has.
  integer function ronde_size(process_set, ierr)
    integer, intent(in), optional :: process_set
    integer, intent(out), optional :: ierr
    ronde_size = number_of_set(c_size, process_set, ierr)
  end function ronde_size

  !> A process set of these ranks. All ranks of the group make it, in the same order as other sets.
  integer function ronde_process_set_add(ranks, ierr)
    integer, intent(in) :: ranks(:)
    integer, intent(out), optional :: ierr
    integer(c_int32_t) :: set
    set = -1
    call conclude(c_set_add(int(ranks, c_int), size(ranks, kind=c_int), set), ierr)
    ronde_process_set_add = set
  end function ronde_process_set_add

  !> Removes a set; all ranks of the group call it.
  subroutine ronde_process_set_remove(process_set, ierr)
    integer, intent(in) :: process_set
    integer, intent(out), optional :: ierr
    call conclude(c_set_remove(int(process_set, c_int32_t)), ierr)
  end subroutine ronde_process_set_remove

  !> Whether this rank is in a set.
  logical function ronde_process_set_included(process_set, ierr)
    integer, intent(in) :: process_set
    integer, intent(out), optional :: ierr
    ronde_process_set_included = number_of_set(c_included, process_set, ierr) == 1
  end function ronde_process_set_included

  !> A world of the ranks of the communicator `comm`, which all call it; at any thread level of MPI.
  !> Its number stands wherever a process set is asked for. -1 where it fails, which names no set.
  integer function ronde_world_make(name, comm, ierr)
    character(*), intent(in) :: name
    integer, intent(in) :: comm
    integer, intent(out), optional :: ierr
    type(c_init_options) :: options
    integer(c_int), target :: handle
    integer(c_int32_t) :: world
    world = -1
    handle = int(comm, c_int)
    options%struct_size = c_sizeof(options)
    options%mpi_comm = c_loc(handle)
    call conclude(c_world_make(trim(name) // c_null_char, options, world), ierr)
    ronde_world_make = world
  end function ronde_world_make

  !> A world of ranks of a process set or world, numbered as in it, in this order. They alone call it.
  integer function ronde_world_make_within(name, process_set, ranks, ierr)
    character(*), intent(in) :: name
    integer, intent(in) :: process_set, ranks(:)
    integer, intent(out), optional :: ierr
    integer(c_int32_t) :: world
    world = -1
    call conclude(c_world_make_within(trim(name) // c_null_char, int(process_set, c_int32_t), &
        int(ranks, c_int), size(ranks, kind=c_int), world), ierr)
    ronde_world_make_within = world
  end function ronde_world_make_within

  !> Leaves a world together with its other ranks.
  subroutine ronde_world_shutdown(world, ierr)
    integer, intent(in) :: world
    integer, intent(out), optional :: ierr
    call conclude(c_world_shutdown(int(world, c_int32_t)), ierr)
  end subroutine ronde_world_shutdown

  !> Why the last call of this thread that failed did so; '' if none has.
  function ronde_error_message() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    type(c_ptr) :: address
    integer :: i
    address = c_last_error()
    call c_f_pointer(address, characters, [c_strlen(address)])
    allocate (character(size(characters)) :: text)
    do i = 1, size(characters)
      text(i:i) = characters(i)
    end do
  end function ronde_error_message

  subroutine allreduce_real32(values, op, name, process_set, ierr)
    real(real32), contiguous, target, intent(inout) :: values(..)
    integer, intent(in), optional :: op, process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call run(c_allreduce, c_loc(values), shape(values, int64), f32, op, 0, name, process_set, ierr)
  end subroutine allreduce_real32

  subroutine allreduce_real64(values, op, name, process_set, ierr)
    real(real64), contiguous, target, intent(inout) :: values(..)
    integer, intent(in), optional :: op, process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call run(c_allreduce, c_loc(values), shape(values, int64), f64, op, 0, name, process_set, ierr)
  end subroutine allreduce_real64

  subroutine allreduce_int32(values, op, name, process_set, ierr)
    integer(int32), contiguous, target, intent(inout) :: values(..)
    integer, intent(in), optional :: op, process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call run(c_allreduce, c_loc(values), shape(values, int64), i32, op, 0, name, process_set, ierr)
  end subroutine allreduce_int32

  subroutine allreduce_int64(values, op, name, process_set, ierr)
    integer(int64), contiguous, target, intent(inout) :: values(..)
    integer, intent(in), optional :: op, process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call run(c_allreduce, c_loc(values), shape(values, int64), i64, op, 0, name, process_set, ierr)
  end subroutine allreduce_int64

  subroutine broadcast_real32(values, root, name, process_set, ierr)
    real(real32), contiguous, target, intent(inout) :: values(..)
    integer, intent(in) :: root
    integer, intent(in), optional :: process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call run(c_broadcast, c_loc(values), shape(values, int64), f32, RONDE_SUM, root, name, &
        process_set, ierr)
  end subroutine broadcast_real32

  subroutine broadcast_real64(values, root, name, process_set, ierr)
    real(real64), contiguous, target, intent(inout) :: values(..)
    integer, intent(in) :: root
    integer, intent(in), optional :: process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call run(c_broadcast, c_loc(values), shape(values, int64), f64, RONDE_SUM, root, name, &
        process_set, ierr)
  end subroutine broadcast_real64

  subroutine broadcast_int32(values, root, name, process_set, ierr)
    integer(int32), contiguous, target, intent(inout) :: values(..)
    integer, intent(in) :: root
    integer, intent(in), optional :: process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call run(c_broadcast, c_loc(values), shape(values, int64), i32, RONDE_SUM, root, name, &
        process_set, ierr)
  end subroutine broadcast_int32

  subroutine broadcast_int64(values, root, name, process_set, ierr)
    integer(int64), contiguous, target, intent(inout) :: values(..)
    integer, intent(in) :: root
    integer, intent(in), optional :: process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call run(c_broadcast, c_loc(values), shape(values, int64), i64, RONDE_SUM, root, name, &
        process_set, ierr)
  end subroutine broadcast_int64

  ! Runs an operation in place. C takes the outermost dimension first and Fortran names it last, so
  ! the shape is reversed: a C program sees values(3, 4) as values[4][3].
  subroutine run(operation, data, extents, dtype, op, root, name, process_set, ierr)
    procedure(c_operation) :: operation
    type(c_ptr), intent(in) :: data
    integer(int64), intent(in) :: extents(:)
    integer(c_int), intent(in) :: dtype
    integer, intent(in) :: root
    integer, intent(in), optional :: op, process_set
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    character(kind=c_char, len=:), allocatable, target :: name_for_c
    integer(c_int64_t), target :: shape_for_c(max_dims)
    type(c_tensor) :: tensor
    type(c_options) :: options
    type(c_ptr) :: work
    integer(c_int) :: status, status_of_free
    shape_for_c(:size(extents)) = extents(size(extents):1:-1)
    tensor%struct_size = c_sizeof(tensor)
    tensor%data = data
    tensor%shape = c_loc(shape_for_c)
    tensor%dims = size(extents, kind=c_int)
    tensor%dtype = dtype
    options%struct_size = c_sizeof(options)
    if (present(name)) then
      name_for_c = trim(name) // c_null_char
      options%name = c_loc(name_for_c)
    end if
    if (present(op)) options%op = int(op, c_int)
    options%root = int(root, c_int)
    options%process_set = set_or_all(process_set)
    status = operation(tensor, tensor, options, work)
    if (status == RONDE_OK) then
      status = c_work_wait(work, -1.0_c_double)
      status_of_free = c_work_free(work)
      if (status == RONDE_OK) status = status_of_free
    end if
    call conclude(status, ierr)
  end subroutine run

  integer function number_of_set(get, process_set, ierr)
    procedure(c_number_of_set) :: get
    integer, intent(in), optional :: process_set
    integer, intent(out), optional :: ierr
    integer(c_int) :: number
    number = -1
    call conclude(get(set_or_all(process_set), number), ierr)
    number_of_set = number
  end function number_of_set

  integer(c_int32_t) function set_or_all(process_set)
    integer, intent(in), optional :: process_set
    set_or_all = RONDE_ALL_RANKS
    if (present(process_set)) set_or_all = int(process_set, c_int32_t)
  end function set_or_all

  ! Gives the status to the program, or ends it with the error.
  subroutine conclude(status, ierr)
    integer(c_int), intent(in) :: status
    integer, intent(out), optional :: ierr
    if (present(ierr)) then
      ierr = status
    else if (status /= RONDE_OK) then
      write (error_unit, '(2a)') 'ronde: ', ronde_error_message()
      flush (error_unit)
      error stop 1
    end if
  end subroutine conclude

end module ronde
