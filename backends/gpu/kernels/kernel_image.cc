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
#else
#define RONDE_KERNEL_TOOLKIT 0
constexpr const unsigned char* ronde_kernel_image = nullptr;
#endif

namespace ronde::cuda {

const void* kernel_image() noexcept {
  return ronde_kernel_image;
}

int kernel_toolkit() noexcept {
  return RONDE_KERNEL_TOOLKIT;
}

}  // namespace ronde::cuda
