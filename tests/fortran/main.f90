! SPDX-License-Identifier: Apache-2.0
! The module `ronde` beside MPI's own results, in a program that calls plain MPI_Init().
program main
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use mpi_f08
  use checks
  use ronde
  implicit none

  type(MPI_Comm) :: reversed
  integer :: rank, ranks, provided

  call MPI_Init_thread(MPI_THREAD_SINGLE, provided)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, reversed)
  call before_init()
  call ronde_init(reversed%mpi_val)
  call MPI_Comm_free(reversed)
  call of_a_communicator()
  call ronde_shutdown()
  call ronde_init()
  call of_all_ranks()
  call reductions()
  call shapes()
  call sections()
  call broadcasts()
  call process_sets()
  call errors()
  call worlds()
  call ronde_shutdown()
  call check(.not. ronde_is_initialized(), 'initialised after the shutdown')
  call MPI_Finalize()
  if (failures > 0) error stop 1

contains

  subroutine before_init()
    integer :: ierr, number
    this_case = 'before init'
    call check(.not. ronde_is_initialized(), 'initialised')
    call check(ronde_error_message() == '', 'a message without an error')
    number = ronde_rank(ierr=ierr)
    call check_fails(ierr, RONDE_E_NOT_INITIALIZED, 'ronde_init')
    call check(number == -1, 'a rank')
    call ronde_init(MPI_COMM_NULL%mpi_val, ierr)
    call check_fails(ierr, RONDE_E_USAGE, 'MPI_COMM_NULL')
  end subroutine before_init

  subroutine of_a_communicator()
    this_case = 'of a communicator'
    call check(ronde_rank() == ranks - 1 - rank, 'the rank')
    call check(ronde_size() == ranks, 'the size')
  end subroutine of_a_communicator

  subroutine of_all_ranks()
    integer :: ierr
    this_case = 'of all ranks'
    call check(ronde_is_initialized(), 'not initialised')
    call check(ronde_rank(ierr=ierr) == rank .and. ierr == RONDE_OK, 'the rank')
    call check(ronde_size(RONDE_ALL_RANKS, ierr) == ranks .and. ierr == RONDE_OK, 'the size')
  end subroutine of_all_ranks

  ! Small whole numbers, so that every order of adding them gives the same.
  subroutine reductions()
    integer, parameter :: n = 1000
    integer, parameter :: ops(4) = [RONDE_SUM, RONDE_MIN, RONDE_MAX, RONDE_PRODUCT]
    real(real32) :: single(n), expected_single(n)
    real(real64) :: double(n), expected_double(n)
    integer(int32) :: small(n), expected_small(n)
    integer(int64) :: large(n), expected_large(n)
    type(MPI_Op) :: of_mpi(4)
    integer :: i, k
    this_case = 'reductions'
    of_mpi = [MPI_SUM, MPI_MIN, MPI_MAX, MPI_PROD]
    do k = 1, size(ops)
      small = [(int(mod(i * (rank + 3), 7) - 3, int32), i = 1, n)]
      large = small * 1000000007_int64
      if (ops(k) == RONDE_PRODUCT) large = small
      single = small
      double = small
      call MPI_Allreduce(single, expected_single, n, MPI_REAL, of_mpi(k), MPI_COMM_WORLD)
      call MPI_Allreduce(double, expected_double, n, MPI_REAL8, of_mpi(k), MPI_COMM_WORLD)
      call MPI_Allreduce(small, expected_small, n, MPI_INTEGER4, of_mpi(k), MPI_COMM_WORLD)
      call MPI_Allreduce(large, expected_large, n, MPI_INTEGER8, of_mpi(k), MPI_COMM_WORLD)
      call ronde_allreduce(single, ops(k))
      call ronde_allreduce(double, ops(k), 'double')
      call ronde_allreduce(small, ops(k))
      call ronde_allreduce(large, ops(k))
      call check(all(single == expected_single), 'real32')
      call check(all(double == expected_double), 'real64')
      call check(all(small == expected_small), 'int32')
      call check(all(large == expected_large), 'int64')
    end do
    single = rank
    double = rank
    small = 2 * rank
    large = 2 * rank
    call ronde_allreduce(single, op=RONDE_AVERAGE)
    call ronde_allreduce(double, RONDE_AVERAGE)
    call ronde_allreduce(small, RONDE_AVERAGE)
    call ronde_allreduce(large, RONDE_AVERAGE)
    call check(all(single == (ranks - 1) / 2.0_real32), 'the average of real32')
    call check(all(double == (ranks - 1) / 2.0_real64), 'the average of real64')
    call check(all(small == ranks - 1), 'the average of int32')
    call check(all(large == ranks - 1), 'the average of int64')
  end subroutine reductions

  subroutine shapes()
    real(real64) :: scalar, plane(3, 5)
    real(real64), allocatable :: box(:, :, :), none(:)
    this_case = 'shapes'
    scalar = 1
    plane = reshape([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [3, 5])
    allocate (box(-1:2, 3, 2), none(0))
    box = 2
    call ronde_allreduce(scalar)
    call ronde_allreduce(plane)
    call ronde_allreduce(box)
    call ronde_allreduce(none)
    call check(nint(scalar) == ranks, 'a scalar')
    call check(nint(plane(3, 5)) == 15 * ranks .and. nint(plane(2, 1)) == 2 * ranks, 'a plane')
    call check(all(nint(box) == 2 * ranks), 'a box')
  end subroutine shapes

  ! The compiler copies what is not contiguous in and out.
  subroutine sections()
    integer(int32) :: table(4, 6), i
    this_case = 'sections'
    table = reshape([(i, i = 1, 24)], [4, 6])
    call ronde_allreduce(table(2:4:2, ::3))
    call check(all(table(2, [1, 4]) == ranks * [2, 14]), 'a row of the section')
    call check(all(table(4, [1, 4]) == ranks * [4, 16]), 'the other row of the section')
    call check(sum(table) == 300 + (ranks - 1) * 36, 'what is beside the section')
    call through_pointer(table(1, :))
    call check(all(table(1, :) == ranks * [1, 5, 9, 13, 17, 21]), 'an assumed shape')
  end subroutine sections

  subroutine through_pointer(values)
    integer(int32), intent(inout) :: values(:)
    call ronde_allreduce(values, name='row')
  end subroutine through_pointer

  subroutine broadcasts()
    real(real32) :: single(10)
    real(real64) :: double(2, 3)
    integer(int32) :: small
    integer(int64) :: large(3, 2, 2)
    integer :: root
    this_case = 'broadcasts'
    do root = 0, ranks - 1
      single = rank
      double = rank
      small = rank
      large = rank
      call ronde_broadcast(single, root)
      call ronde_broadcast(double, root, 'double')
      call ronde_broadcast(small, root=root)
      call ronde_broadcast(large, root)
      call check(all(nint(single) == root), 'real32')
      call check(all(nint(double) == root), 'real64')
      call check(small == root, 'int32')
      call check(all(large == root), 'int64')
    end do
  end subroutine broadcasts

  ! The last rank and the first, in this order, which are one where there is one rank.
  subroutine process_sets()
    integer, allocatable :: members(:)
    integer(int32) :: value
    integer :: set, ierr
    this_case = 'process sets'
    allocate (members(min(ranks, 2)), source=0)
    members(1) = ranks - 1
    set = ronde_process_set_add(members)
    call check(ronde_size(set) == size(members), 'the size')
    call check(ronde_process_set_included(set) .eqv. any(members == rank), 'the members')
    value = rank + 1
    if (ronde_process_set_included(set)) then
      call check(members(ronde_rank(set) + 1) == rank, 'the order')
      call ronde_allreduce(value, process_set=set)
      call check(value == sum(members + 1), 'the sum')
      value = rank
      call ronde_broadcast(value, root=0, process_set=set)
      call check(value == members(1), 'the root')
    else
      call ronde_allreduce(value, process_set=set, ierr=ierr)
      call check_fails(ierr, RONDE_E_NOT_A_MEMBER, 'process set')
    end if
    call ronde_process_set_remove(set)
    value = ronde_size(set, ierr)
    call check_fails(ierr, RONDE_E_UNKNOWN_SET, 'process set')
    set = ronde_process_set_add([ranks], ierr)
    call check_fails(ierr, RONDE_E_USAGE, 'rank')
  end subroutine process_sets

  ! Of rank 1 the array is values(3, 2), which in C is [2][3].
  subroutine errors()
    real(real64), allocatable :: values(:, :)
    integer :: ierr
    this_case = 'errors'
    allocate (values(merge(3, 2, rank == 1), merge(2, 3, rank == 1)), source=1.0_real64)
    call ronde_allreduce(values, name='field', ierr=ierr)
    if (ranks == 1) then
      call check(ierr == RONDE_OK, 'one rank disagrees with itself')
    else
      call check_fails(ierr, RONDE_E_USAGE, "allreduce 'field' differs between ranks")
      call check_fails(ierr, RONDE_E_USAGE, 'rank 1: allreduce f64 [2, 3] sum')
    end if
    call ronde_allreduce(values, op=99, ierr=ierr)
    call check_fails(ierr, RONDE_E_INVALID_ARGUMENT, 'op is none that there is')
    call ronde_init(ierr=ierr)
    call check_fails(ierr, RONDE_E_USAGE, '')
    values = reshape([1, 1, 1, 1, 1, 1], [2, 3])
    call ronde_allreduce(values, name='field')
    call check(all(nint(values) == ranks), 'the sum after the errors')
  end subroutine errors

  ! The even ranks, the odd ranks, and all ranks; the world of all makes another one.
  subroutine worlds()
    type(MPI_Comm) :: half
    integer(int32) :: value, expected
    integer :: i, of_half, of_all, within, ierr
    this_case = 'worlds'
    call MPI_Comm_split(MPI_COMM_WORLD, mod(rank, 2), rank, half)
    of_half = ronde_world_make('half', half%mpi_val)
    of_all = ronde_world_make('all', MPI_COMM_WORLD%mpi_val)
    within = ronde_world_make_within('within', of_all, [(i, i = ranks - 1, 0, -1)])
    call check(of_half < -1 .and. of_all < -1 .and. of_half /= of_all, 'the numbers')
    call check(ronde_size(of_all) == ranks, 'the size')
    call check(ronde_rank(of_all) == rank, 'the rank')
    call check(ronde_rank(within) == ranks - 1 - rank, 'the rank within')
    call MPI_Allreduce(rank + 1, expected, 1, MPI_INTEGER4, MPI_SUM, half)
    value = rank + 1
    call ronde_allreduce(value, process_set=of_half)
    call check(value == expected, 'the sum of half of the ranks')
    call MPI_Allreduce(value, expected, 1, MPI_INTEGER4, MPI_SUM, MPI_COMM_WORLD)
    call ronde_allreduce(value, process_set=of_all)
    call check(value == expected, 'the sum of all ranks')
    call MPI_Comm_free(half)
    call ronde_world_shutdown(of_half)
    call ronde_world_shutdown(within)
    call ronde_world_shutdown(of_all)
    call ronde_world_shutdown(of_all, ierr)
    call check_fails(ierr, RONDE_E_UNKNOWN_SET, 'there is no world')
    call ronde_allreduce(value, process_set=of_all, ierr=ierr)
    call check(ierr == RONDE_E_NOT_INITIALIZED, 'a sum in a world that has ended')
    of_all = ronde_world_make('a/b', MPI_COMM_WORLD%mpi_val, ierr)
    call check_fails(ierr, RONDE_E_USAGE, 'cannot name a world')
  end subroutine worlds

end program main
