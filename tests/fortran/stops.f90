! SPDX-License-Identifier: Apache-2.0
! Ranks whose shapes differ, and nobody asks for `ierr`.
program stops
  use ronde
  implicit none
  double precision, allocatable :: field(:)

  call ronde_init()
  allocate (field(2 + ronde_rank()), source=1.0d0)
  call ronde_allreduce(field, name='field')
  print '(a)', 'the program goes on'
  call ronde_shutdown()
end program stops
