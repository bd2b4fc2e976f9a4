// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/kernels/kernel_list.h"
#include "backends/gpu/kernels/segments.h"
#include "tests/support/fakes/fake_cuda_state.h"

namespace ronde::test {
namespace {

using namespace ronde::cuda::kernels;

template <typename Thread>
std::function<void()> grid_of(const FakeCuda::Launch& launch, Thread thread) {
  return [blocks = launch.blocks, threads = launch.threads, thread] {
    for (unsigned block = 0; block < blocks; ++block) {
      for (unsigned i = 0; i < threads; ++i) thread(Place{block, blocks, i});
    }
  };
}

template <typename From, typename To>
std::function<void()> run_copy(const FakeCuda::Launch& launch) {
  return grid_of(launch, [how = launch.argument<CopyArguments>(0)](const Place& place) {
    copy_segments<From, To>(how, place);
  });
}

template <typename Element>
std::function<void()> run_reduce(const FakeCuda::Launch& launch) {
  return grid_of(launch, [how = launch.argument<ReductionArguments>(0)](const Place& place) {
    reduce_elements<Element>(how, place);
  });
}

}  // namespace

std::map<std::string, FakeCuda::Kernel> fake::ronde_kernels() {
  return {
#define COPY(name, From, To) {#name, run_copy<From, To>},
#define REDUCE(name, Element) {#name, run_reduce<Element>},
      RONDE_COPY_KERNELS(COPY) RONDE_REDUCE_KERNELS(REDUCE)};
}

}  // namespace ronde::test
