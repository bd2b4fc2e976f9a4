// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <string>

#include "fake_cuda_state.h"

namespace ronde::test::fake {
namespace {

Work work_of(const StreamMemoryOperation& operation) {
  // The host writes words, too.
  const std::atomic_ref word(*reinterpret_cast<std::uint32_t*>(operation.address));
  const auto value = static_cast<std::uint32_t>(operation.value);
  if (operation.operation == kWriteWord) return {[=] { word.store(value); }, nullptr, 0};
  return {{}, nullptr, 0, [=] { return static_cast<std::int32_t>(word.load() - value) >= 0; }};
}

}  // namespace

void add_streams(Symbols& symbols) {
  symbols["cuStreamCreateWithPriority"] = at(+[](StreamHandle* stream, unsigned, int) {
    return call_in_context("cuStreamCreateWithPriority", [&](State& s, Lock&) {
      *stream = s.new_handle<StreamHandle>();
      const auto held = s.held_devices.find(current_device());
      s.streams[*stream].is_held = held != s.held_devices.end() && held->second-- <= 0;
      return kSuccess;
    });
  });
  // As in the driver: what is queued runs in its order, each wait included, and the call does not
  // wait for it.
  symbols["cuStreamDestroy_v2"] = at(+[](StreamHandle handle) {
    return call_in_context("cuStreamDestroy_v2", [&](State& s, Lock&) {
      Stream* const stream = s.find_stream(handle);
      if (stream == nullptr) return kInvalidHandle;
      stream->is_destroyed = true;
      return s.run(), kSuccess;
    });
  });
  symbols["cuStreamQuery"] = at(+[](StreamHandle handle) {
    return call_in_context("cuStreamQuery", [&](State& s, Lock&) {
      const Stream* const stream = s.find_stream(handle);
      if (stream == nullptr) return kInvalidHandle;
      s.run();
      return stream->queue.empty() ? kSuccess : kNotReady;
    });
  });
  symbols["cuStreamSynchronize"] = at(+[](StreamHandle stream) {
    return call_in_context("cuStreamSynchronize", [&](State& s, Lock& lock) {
      s.wait_until(lock, [&] { return s.streams.at(stream).queue.empty(); });
      return kSuccess;
    });
  });
  symbols["cuStreamWaitEvent"] = at(+[](StreamHandle stream, EventHandle event, unsigned) {
    return call_in_context("cuStreamWaitEvent", [&](State& s, Lock&) {
      const auto found = s.events.find(event);
      if (found == s.events.end()) return kInvalidHandle;
      return s.enqueue(stream, {{}, found->second, found->second->recorded});
    });
  });
  symbols["cuStreamBatchMemOp_v2"] =
      at(+[](StreamHandle stream, unsigned count, StreamMemoryOperation* operations, unsigned) {
        return call_in_context("cuStreamBatchMemOp_v2", [&](State& s, Lock&) {
          for (unsigned i = 0; i < count; ++i) {
            const bool gets_lost =
                operations[i].operation == kWriteWord && !s.options.written_words_show;
            if (gets_lost) continue;
            const Result result = s.enqueue(stream, work_of(operations[i]));
            if (result != kSuccess) return result;
          }
          return kSuccess;
        });
      });
  symbols["cuMemcpyAsync"] =
      at(+[](DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle stream) {
        return call_in_context("cuMemcpyAsync", [&](State& s, Lock&) {
          if (!s.is_device_accessible(from)) {
            // Pageable memory has been read when the call returns.
            const std::vector<char> values(pointer_to(from), pointer_to(from) + bytes);
            return s.enqueue(
                stream, {[=] { std::memcpy(pointer_to(to), values.data(), bytes); }, nullptr, 0});
          }
          return s.enqueue(
              stream, {[=] { std::memmove(pointer_to(to), pointer_to(from), bytes); }, nullptr, 0});
        });
      });
  symbols["cuMemsetD8Async"] = at(+[](DevicePointer to, unsigned char value, std::size_t bytes,
                                      StreamHandle stream) {
    return call_in_context("cuMemsetD8Async", [&](State& s, Lock&) {
      return s.enqueue(stream, {[=] { std::memset(pointer_to(to), value, bytes); }, nullptr, 0});
    });
  });
}

void add_events(Symbols& symbols) {
  symbols["cuEventCreate"] = at(+[](EventHandle* event, unsigned) {
    return call_in_context("cuEventCreate", [&](State& s, Lock&) {
      *event = s.new_handle<EventHandle>();
      const auto state = std::make_shared<EventState>();
      state->number = s.last_number;
      return s.events[*event] = state, kSuccess;
    });
  });
  symbols["cuEventDestroy_v2"] = at(+[](EventHandle event) {
    return call_in_context("cuEventDestroy_v2", [&](State& s, Lock&) {
      return s.events.erase(event) == 1 ? kSuccess : kInvalidHandle;
    });
  });
  symbols["cuEventRecord"] = at(+[](EventHandle event, StreamHandle stream) {
    return call_in_context("cuEventRecord", [&](State& s, Lock&) {
      const auto found = s.events.find(event);
      if (found == s.events.end()) return kInvalidHandle;
      const std::uint64_t number = ++found->second->recorded;
      const auto state = found->second;
      return s.enqueue(stream, {[=] { state->completed = number; }, nullptr, 0});
    });
  });
  symbols["cuEventQuery"] = at(+[](EventHandle event) {
    return call_in_context("cuEventQuery", [&](State& s, Lock&) {
      const auto found = s.events.find(event);
      if (found == s.events.end()) return kInvalidHandle;
      s.run();
      return found->second->completed == found->second->recorded ? kSuccess : kNotReady;
    });
  });
  symbols["cuEventSynchronize"] = at(+[](EventHandle event) {
    return call_in_context("cuEventSynchronize", [&](State& s, Lock& lock) {
      const auto state = s.events.at(event);
      s.wait_until(lock, [&] { return state->completed == state->recorded; });
      return kSuccess;
    });
  });
}

void add_kernels(Symbols& symbols) {
  symbols["cuModuleLoadData"] = at(+[](ModuleHandle* module, const void* image) {
    return call_in_context("cuModuleLoadData", [&](State& s, Lock&) {
      if (image == nullptr) return kInvalidValue;
      *module = s.new_handle<ModuleHandle>();
      return s.modules.insert(*module), kSuccess;
    });
  });
  symbols["cuModuleUnload"] = at(+[](ModuleHandle module) {
    return call_in_context("cuModuleUnload", [&](State& s, Lock&) {
      return s.modules.erase(module) == 1 ? kSuccess : kInvalidHandle;
    });
  });
  symbols["cuModuleGetFunction"] =
      at(+[](FunctionHandle* function, ModuleHandle module, const char* name) {
        return call_in_context("cuModuleGetFunction", [&](State& s, Lock&) {
          if (s.modules.count(module) == 0) return kInvalidHandle;
          if (s.kernels.count(name) + s.waiting_kernels.count(name) == 0) return kNotFound;
          *function = s.new_handle<FunctionHandle>();
          return s.functions[*function] = name, kSuccess;
        });
      });
  symbols["cuFuncLoad"] = at(+[](FunctionHandle function) {
    return call_in_context("cuFuncLoad", [&](State& s, Lock&) {
      return s.functions.count(function) == 1 ? kSuccess : kInvalidHandle;
    });
  });
  symbols["cuLaunchKernel"] =
      at(+[](FunctionHandle function, unsigned blocks, unsigned, unsigned, unsigned threads,
             unsigned, unsigned, unsigned, StreamHandle stream, void** arguments, void**) {
        return call_in_context("cuLaunchKernel", [&](State& s, Lock&) {
          const auto found = s.functions.find(function);
          if (found == s.functions.end()) return kInvalidHandle;
          if (blocks == 0 || threads == 0 || threads > 1024) return kInvalidValue;
          const FakeCuda::Launch launch{blocks, threads, arguments};
          const auto waiting = s.waiting_kernels.find(found->second);
          if (waiting != s.waiting_kernels.end()) {
            return s.enqueue(stream, {{}, nullptr, 0, waiting->second(launch)});
          }
          return s.enqueue(stream, {s.kernels.at(found->second)(launch), nullptr, 0});
        });
      });
}

}  // namespace ronde::test::fake
