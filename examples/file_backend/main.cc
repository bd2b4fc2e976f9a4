// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <utility>

#include "file_backend.h"
#include "ronde/ronde.h"

/// Averages one number over the ranks with a backend that this program brings along:
///   RONDE_CPU_BACKEND=file mpiexec -n 3 file_backend
int main() {
  ronde::register_backend("file", file_backend::file_backend_factory());
  return ronde::main([] {
    float value = static_cast<float>(ronde::rank());
    ronde::Request request;
    request.name = "value";
    request.op = ronde::ReduceOp::Average;
    request.shape = {1};
    request.input = request.output = &value;
    ronde::submit(std::move(request)).wait();
    std::cout << "rank " << ronde::rank() << ": " << value << " by "
              << ronde::default_runtime().backend_name(ronde::DeviceKind::Cpu) << std::endl;
  });
}
