// SPDX-License-Identifier: Apache-2.0
// fake_gpu_bench bench SUBCOMMAND ...
//
// `ronde bench` on GPUs that are fakes: every process has its own, which opens no handle of another
// process, so that CUDA IPC is found not to work.
#include <cstdlib>

#include "backends/cuda/cuda.h"
#include "ronde/ronde.h"
#include "tests/support/fakes/fake_cuda.h"
#include "tools/bench/bench.h"

int main(int argc, char** argv) {
  ronde::test::FakeCuda cuda;
  ronde::CudaOptions options;
  options.symbols = cuda.lookup();
  options.kernel_image = "an image";
  ronde::register_backend("fake", ronde::cuda_backend_factory(options));
  CLI::App app("`ronde bench` on fake GPUs");
  int exit_code = EXIT_SUCCESS;
  ronde::tool::add_bench(app, exit_code,
                         {.symbols = options.symbols, .kernel_image = options.kernel_image});
  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
