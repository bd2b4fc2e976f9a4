! SPDX-License-Identifier: Apache-2.0
! Two ensembles of a diffusing temperature, one on the even ranks and one on the odd ranks of a job.
! Each rank integrates a member with a conductivity of its own, and in every step draws it towards
! the mean of its ensemble. Ronde computes the means; MPI computes them once more, for comparison.
program ensemble
  use, intrinsic :: iso_fortran_env, only: error_unit, real64
  use mpi
  use ronde
  implicit none

  integer, parameter :: points = 20000, steps = 200
  real(real64), parameter :: coupling = 0.1_real64
  real(real64) :: member(0:points + 1), mean(points), mean_of_mpi(points)
  real(real64) :: conductivity, difference
  integer :: world_rank, comm, step, ierr

  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, world_rank, ierr)
  call MPI_Comm_split(MPI_COMM_WORLD, mod(world_rank, 2), world_rank, comm, ierr)

  call ronde_init(comm)
  conductivity = 0.1_real64 + 0.2_real64 * (ronde_rank() + 1) / ronde_size()
  if (ronde_rank() == 0) call random_number(member)
  call ronde_broadcast(member, root=0)

  difference = 0
  do step = 1, steps
    call diffuse(member, conductivity)
    mean = member(1:points)
    call MPI_Allreduce(mean, mean_of_mpi, points, MPI_DOUBLE_PRECISION, MPI_SUM, comm, ierr)
    mean_of_mpi = mean_of_mpi / ronde_size()

    call ronde_allreduce(mean, RONDE_AVERAGE, 'mean')
    difference = max(difference, maxval(abs(mean - mean_of_mpi)))
    member(1:points) = member(1:points) + coupling * (mean - member(1:points))
  end do

  if (ronde_rank() == 0) then
    print '(a, i0, a, i0, a, f8.6, a, es8.1)', 'ensemble of ', ronde_size(), ' after ', steps, &
        ' steps: mean temperature ', sum(mean) / points, ', difference to MPI ', difference
  end if
  call ronde_shutdown()
  call MPI_Finalize(ierr)
  ! Both add the same numbers, perhaps in another order.
  if (difference > 1e-13_real64) then
    write (error_unit, '(a, i0)') 'the means of Ronde and MPI differ on rank ', world_rank
    error stop 1
  end if

contains

  ! A step of the heat equation with insulated ends.
  subroutine diffuse(temperature, factor)
    real(real64), intent(inout) :: temperature(0:)
    real(real64), intent(in) :: factor
    temperature(0) = temperature(1)
    temperature(points + 1) = temperature(points)
    temperature(1:points) = temperature(1:points) + factor * &
        (temperature(:points - 1) - 2 * temperature(1:points) + temperature(2:))
  end subroutine diffuse

end program ensemble
