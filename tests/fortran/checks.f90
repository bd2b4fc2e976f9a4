! SPDX-License-Identifier: Apache-2.0
! What the cases of main.f90 share: a check counts its failures, and says which.
module checks
  use, intrinsic :: iso_fortran_env, only: error_unit
  use ronde, only: ronde_error_message
  implicit none
  private
  public :: check, check_fails, failures, this_case

  integer :: failures = 0
  character(40) :: this_case = ''

contains

  subroutine check(is_right, what)
    logical, intent(in) :: is_right
    character(*), intent(in) :: what
    if (is_right) return
    failures = failures + 1
    write (error_unit, '(4a)') 'FAILED: ', trim(this_case), ': ', what
  end subroutine check

  ! The call before this one gave `code`, and its text holds `part`.
  subroutine check_fails(ierr, code, part)
    integer, intent(in) :: ierr, code
    character(*), intent(in) :: part
    character(:), allocatable :: text
    text = ronde_error_message()
    call check(ierr == code, 'another code than that of: ' // part)
    call check(index(text, part) > 0, 'no "' // part // '" in: ' // text)
  end subroutine check_fails

end module checks
