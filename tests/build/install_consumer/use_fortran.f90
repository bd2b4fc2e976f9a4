! SPDX-License-Identifier: Apache-2.0
! The Fortran module, started without a launcher as a group of one rank.
program use_fortran
  use ronde
  implicit none
  real :: values(3)

  values = 2
  call ronde_init()
  call ronde_allreduce(values, RONDE_AVERAGE)
  if (ronde_size() /= 1 .or. nint(sum(values)) /= 6) error stop 1
  call ronde_shutdown()
end program use_fortran
