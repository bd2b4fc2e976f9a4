// SPDX-License-Identifier: Apache-2.0
// LibTorch's CUDA device where there is none: memory of the host, kernels of the CPU, streams that
// are names. No library of CUDA may be loaded, which has kernels and a guard of its own.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "tests/support/fakes/fake_device.h"
#include "tests/torch/device/cases.h"
#include "tests/torch/support.h"

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

const Device kDevice(c10::kCUDA, 0);
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);
constexpr int kStreams = 20;
thread_local c10::StreamId current = 0;
std::atomic<int> next_stream{1};

Stream stream_of(c10::StreamId id) {
  return Stream(Stream::UNSAFE, kDevice, id);
}

struct FakeGuard final : c10::impl::NoOpDeviceGuardImpl<c10::kCUDA> {
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  Stream getStream(Device) const noexcept override { return stream_of(current); }
  Stream getDefaultStream(Device) const override { return stream_of(0); }
  Stream getStreamFromGlobalPool(Device, bool) const override {
    return stream_of(next_stream.fetch_add(1) % kStreams);
  }
  Stream exchangeStream(Stream stream) const noexcept override {
    return stream_of(std::exchange(current, stream.id()));
  }
  void* getStreamNativeHandle(Stream stream) const override {
    return ronde::test::FakeDevice::stream(static_cast<char>('A' + stream.id()));
  }
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard)

/// There is a device: autograd asks for its streams.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 0; }  // with generators of random numbers
  DeviceIndex getCurrentDevice() const override { return 0; }
};

}  // namespace

namespace at {
using ::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

namespace {

struct FakeAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data = bytes > 0 ? std::malloc(bytes) : nullptr;
    return {data, data, &std::free, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

FakeAllocator allocator;
REGISTER_ALLOCATOR(c10::kCUDA, &allocator)

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, &allocator, kKeys,
                                           dtype.value_or(at::kFloat));
}

at::Tensor empty_dense(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                       std::optional<at::Layout>, std::optional<Device>, std::optional<bool>,
                       std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, &allocator, kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return to.copy_(from);
}

/// Any other operation: on copies on the CPU.
void run_on_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  at::native::cpu_fallback(operation, stack, true);
}

void record_stream(at::Tensor&, Stream) {}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty_dense);
  library.impl("empty_strided", &empty_strided);
  library.impl("record_stream", &record_stream);
  library.impl("copy_", &copy);
  library.impl("_copy_from_and_resize", &copy_and_resize);
  library.impl("resize_", &at::native::resize_);
  library.impl("view", &at::native::view);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
}

}  // namespace

namespace ronde_test {

void use_device() {
  static std::once_flag once;
  std::call_once(once, [] {
    ronde::register_backend(
        "fake", ronde::test::fake_device_factory(std::make_shared<ronde::test::FakeDevice>(0)));
  });
  use_ronde();
}

Device device() {
  return kDevice;
}

Stream side_stream() {
  return FakeGuard().getStreamFromGlobalPool(kDevice, false);
}

void fill_late(const at::Tensor& tensor, double value) {
  tensor.fill_(value);
}

void empty_cache() {}

}  // namespace ronde_test
