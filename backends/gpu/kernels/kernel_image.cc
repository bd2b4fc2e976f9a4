// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/kernels/kernel_image.h"

#ifdef RONDE_KERNEL_IMAGE
asm(".section .rodata\n"
    ".balign 16\n"
    ".globl ronde_kernel_image\n"
    ".hidden ronde_kernel_image\n"
    "ronde_kernel_image:\n"
    ".incbin \"" RONDE_KERNEL_IMAGE
    "\"\n"
    ".previous\n");
extern "C" const unsigned char ronde_kernel_image[];
#endif

namespace ronde::cuda {

const void* kernel_image() noexcept {
#ifdef RONDE_KERNEL_IMAGE
  return static_cast<const unsigned char*>(ronde_kernel_image);
#else
  return nullptr;
#endif
}

int kernel_toolkit() noexcept {
#ifdef RONDE_KERNEL_TOOLKIT
  return RONDE_KERNEL_TOOLKIT;
#else
  return 0;
#endif
}

}  // namespace ronde::cuda
