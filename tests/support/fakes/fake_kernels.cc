// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/kernels/kernel_list.h"
#include "backends/gpu/kernels/segments.h"
#include "tests/support/fakes/fake_cuda_state.h"

namespace ronde::test {
namespace {

using namespace ronde::cuda::kernels;

/// Its threads run one after the other.
template <typename Arguments>
FakeCuda::Kernel grid_of(void (*thread)(const Arguments&, const Place&)) {
  return [thread](const FakeCuda::Launch& launch) {
    return [thread, launch, how = launch.argument<Arguments>(0)] {
      for (unsigned block = 0; block < launch.blocks; ++block) {
        for (unsigned i = 0; i < launch.threads; ++i) thread(how, {block, launch.blocks, i});
      }
    };
  };
}

}  // namespace

std::map<std::string, FakeCuda::Kernel> fake::ronde_kernels() {
  return {
#define COPY(name, From, To) {#name, grid_of(&copy_segments<From, To>)},
#define REDUCE(name, Element) {#name, grid_of(&reduce_elements<Element>)},
      RONDE_COPY_KERNELS(COPY) RONDE_REDUCE_KERNELS(REDUCE)};
}

}  // namespace ronde::test
