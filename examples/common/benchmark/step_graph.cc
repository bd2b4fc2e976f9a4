// SPDX-License-Identifier: Apache-2.0
#include "common/benchmark/step_graph.h"

#include <dlfcn.h>

#include <string>

#include "common/errors.h"

namespace example {
namespace {

constexpr const char* kModule = "example_cuda_graph.so";
constexpr const char* kMaker = "example_make_cuda_graph";

}  // namespace

CudaGraphMaker load_cuda_graphs(const std::filesystem::path& folder) {
  const std::string file = (folder / kModule).string();
  void* const module = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const maker = module != nullptr ? dlsym(module, kMaker) : nullptr;
  if (maker != nullptr) return reinterpret_cast<CudaGraphMaker>(maker);
  throw InputError(std::string("--cuda-graph: the module that makes CUDA graphs does not open (") +
                   dlerror() +
                   "). It is built beside the examples with a LibTorch that has CUDA, and the "
                   "headers of the CUDA Toolkit; build with these, or leave --cuda-graph out");
}

std::filesystem::path program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

std::unique_ptr<StepGraph> make_cuda_graph(c10::Device device) {
  if (!device.is_cuda()) {
    throw InputError("--cuda-graph: only a GPU's work can be captured; add --device cuda");
  }
  return std::unique_ptr<StepGraph>(load_cuda_graphs(program_folder())(device.index()));
}

}  // namespace example
