// SPDX-License-Identifier: Apache-2.0
// Kernels that break each rule of kernel_code.py once, by names of kernel_list.h but the last one.
#define WRONG_KERNEL(name) extern "C" __global__ void name(float* a, const float* __restrict__ b, int n)

// One rounding for two.
WRONG_KERNEL(ronde_reduce_f32) {
  a[threadIdx.x] = a[threadIdx.x] * a[n] + a[2 * n];
}

// A quotient that is nearly right.
WRONG_KERNEL(ronde_copy_f32_f32) {
  a[threadIdx.x] = __fdividef(a[n], a[threadIdx.x]);
}

// A load through the cache for data that nobody writes.
WRONG_KERNEL(ronde_move_4) {
  a[threadIdx.x] = b[threadIdx.x];
}

// A signal to other kernels, at the scope of the GPU alone.
WRONG_KERNEL(ronde_move_8) {
  __threadfence();
  atomicAdd(a, 1.0F);
}

// More registers than a block of 512 threads has.
WRONG_KERNEL(ronde_reduce_f16) {
  float values[160];
#pragma unroll
  for (int i = 0; i < 160; ++i) values[i] = a[i * 512 + threadIdx.x];
#pragma unroll
  for (int i = 0; i < 160; ++i) a[n + i * 512 + threadIdx.x] = values[i];
}

// An array that has no place in registers.
WRONG_KERNEL(ronde_reduce_bool) {
  float values[64];
  for (int i = 0; i < n; ++i) values[static_cast<int>(a[i]) & 63] = a[i * n];
  a[threadIdx.x] = values[static_cast<int>(a[threadIdx.x]) & 63];
}

// A name that nobody asks for.
WRONG_KERNEL(ronde_move_3) {
  a[n] = 1.0F;
}
