// SPDX-License-Identifier: Apache-2.0
// Fakes of libcuda.so.1, libnccl.so.2 and libnvidia-ml.so.1 in one library, for programs that look
// for these by name: every process has a GPU of its own, whose memory the others open by CUDA IPC.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/support/fakes/fake_cuda.h"
#include "tests/support/fakes/fake_nccl.h"
#include "tests/support/fakes/fake_nvml.h"

namespace {

struct Fakes {
  ronde::test::FakeCuda cuda{{.processes_share_memory = true}};
  ronde::test::FakeNccl nccl{
      cuda,
      {.version = 23007,
       .ranks_share_gpus = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr,
       .meeting_place = std::filesystem::temp_directory_path()}};
  ronde::vendor::SymbolLookup nvml = ronde::test::library_with(ronde::test::fake_nvml());

  Fakes() {
    // What a stream waits for, another process may write at any time.
    std::thread([this] {
      for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        cuda.ask_again();
      }
    }).detach();
  }

  void* find(const char* symbol) const {
    std::string error;
    for (const auto& library : {cuda.lookup(), nccl.lookup(), nvml}) {
      if (void* const function = library("", symbol, error)) return function;
    }
    return nullptr;
  }
};

void* find(const char* symbol) {
  // Never destroyed: a process may still call it while it ends.
  static const Fakes& fakes = *new Fakes;
  return fakes.find(symbol);
}

}  // namespace

// dlsym() gives what the resolver returns.
using Function = void();
#define RONDE_CALL(member, symbol)                     \
  extern "C" Function* resolve_##symbol() {            \
    return reinterpret_cast<Function*>(find(#symbol)); \
  }                                                    \
  extern "C" __attribute__((ifunc("resolve_" #symbol))) void symbol();
#include "cuda_calls.inc"
#include "nccl_calls.inc"
#include "nvml_calls.inc"
