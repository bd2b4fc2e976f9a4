// SPDX-License-Identifier: Apache-2.0
// A rank of an elastic job whose data is on a GPU: elastic_nccl FOLDER STEPS [GROUP:SLOT ...]. In
// each group it sums a tensor over all ranks for some steps, and is done. The rank in SLOT of group
// GROUP is killed in the middle, with a sum in progress.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/gpu/driver/driver_api.h"
#include "ronde/error.h"
#include "ronde/reform.h"
#include "ronde/ronde.h"
#include "tests/support/gpu/gpu_tensor.h"

namespace {

using namespace ronde;

constexpr std::size_t kCount = 3001;

void sum(test::ProgramGpu& gpu, bool fails) {
  const auto tensor = std::make_shared<test::GpuTensor>(
      gpu, test::bytes_of(std::vector<float>(kCount, static_cast<float>(rank() + 1))));
  Request request = test::sum_request_of(*tensor, gpu, kCount);
  request.keep_alive = tensor;
  const Work work = default_runtime().submit(std::move(request));
  if (fails) raise(SIGKILL);
  work.wait();
  const auto expected = static_cast<float>(size() * (size() + 1)) / 2;
  if (tensor->read() != test::bytes_of(std::vector<float>(kCount, expected)))
    throw std::logic_error("a wrong sum");
}

int run(int steps, const std::vector<std::string>& faults) {
  const cuda::LoadedDriver driver = cuda::load_driver(vendor::dynamic_symbols());
  if (!driver.api) throw std::runtime_error(driver.problem);
  for (;;) {
    const Members members = reform();
    const std::string own = std::to_string(members.number) + ":" + std::to_string(members.own_slot);
    const bool fails = std::ranges::find(faults, own) != faults.end();
    try {
      test::ProgramGpu gpu(driver.api, 0);
      for (int step = 0; step < steps; ++step) sum(gpu, fails && step == steps / 2);
      std::cout << "group " << members.number << " has summed by "
                << default_runtime().backend_name(DeviceKind::Cuda) << " over " << size()
                << " ranks" << std::endl;
      shutdown();
      return EXIT_SUCCESS;
    } catch (const GroupError& error) {
      std::cerr << "goes on after: " << error.what() << std::endl;
    }
  }
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) return 2;
  try {
    return run(std::stoi(words[2]), {words + 3, words + count});
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return EXIT_FAILURE;
  }
}
