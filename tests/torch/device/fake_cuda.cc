// SPDX-License-Identifier: Apache-2.0
// LibTorch's CUDA device where there is none: memory of the host, kernels of the CPU, streams that
// are names. No library of CUDA may be loaded, which has kernels and a guard of its own.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>

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

struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device exchangeDevice(Device) const override { return kDevice; }
  Device getDevice() const override { return kDevice; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return stream_of(current); }
  Stream getDefaultStream(Device) const override { return stream_of(0); }
  Stream getStreamFromGlobalPool(Device, bool) const override {
    return stream_of(next_stream.fetch_add(1) % kStreams);
  }
  Stream exchangeStream(Stream stream) const override {
    return stream_of(std::exchange(current, stream.id()));
  }
  void* getStreamNativeHandle(Stream stream) const override {
    return ronde::test::FakeDevice::stream(static_cast<char>('A' + stream.id()));
  }
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }
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

at::Tensor of_storage(const at::Storage& storage, std::int64_t offset, at::IntArrayRef sizes,
                      at::IntArrayRef strides, caffe2::TypeMeta dtype) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), kKeys, dtype);
  c10::TensorImpl* const made = tensor.unsafeGetTensorImpl();
  made->set_storage_offset(offset);
  made->set_sizes_and_strides(sizes, strides);
  return tensor;
}

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

/// Returns an alias for a kernel of the CPU, which may resize it.
at::Tensor on_host(const at::Tensor& tensor) {
  at::Tensor alias = at::from_blob(
      const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
      [tensor](void*) {}, at::TensorOptions().dtype(tensor.scalar_type()));
  alias.storage().unsafeGetStorageImpl()->set_allocator(c10::GetCPUAllocator());
  alias.storage().unsafeGetStorageImpl()->set_resizable(true);
  return alias;
}

at::Storage as_fake(const at::Tensor& host) {
  return {c10::Storage::use_byte_size_t(), host.storage().nbytes(),
          c10::DataPtr(
              const_cast<void*>(host.storage().data()), new at::Tensor(host),
              [](void* owner) { delete static_cast<at::Tensor*>(owner); }, kDevice),
          nullptr, false};
}

struct Argument {
  at::Tensor tensor, alias;
};

/// Returns the result of a kernel of the CPU for `arguments`.
at::Tensor on_fake(const at::Tensor& host, const std::vector<Argument>& arguments) {
  if (!host.defined() || !host.is_cpu()) return host;
  const auto* const data = static_cast<const std::byte*>(host.const_data_ptr());
  for (const auto& [tensor, alias] : arguments) {
    if (alias.is_same(host)) return tensor;
    const auto* const begin = static_cast<const std::byte*>(tensor.storage().data());
    if (data == nullptr || data < begin || data >= begin + tensor.storage().nbytes()) continue;
    const auto offset = (data - begin) / static_cast<std::ptrdiff_t>(host.element_size());
    return of_storage(tensor.storage(), offset, host.sizes(), host.strides(), host.dtype());
  }
  return of_storage(as_fake(host), host.storage_offset(), host.sizes(), host.strides(),
                    host.dtype());
}

/// Any operation, on the CPU.
void run_on_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const std::size_t count = operation.schema().arguments().size();
  std::vector<Argument> arguments;
  const auto lent = [&arguments](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    return arguments.emplace_back(Argument{tensor, on_host(tensor)}).alias;
  };
  for (std::size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = lent(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> all;
      for (const at::Tensor& each : value.toTensorVector()) all.push_back(lent(each));
      value = all;
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      value = Device(c10::kCPU);
    }
  }
  operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (const auto& [tensor, alias] : arguments) {  // an output that was resized
    if (tensor.sizes() == alias.sizes()) continue;
    if (tensor.const_data_ptr() != alias.const_data_ptr()) {
      tensor.unsafeGetTensorImpl()->set_storage_and_dtype(as_fake(alias), alias.dtype());
      tensor.unsafeGetTensorImpl()->set_storage_offset(0);
    }
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides());
  }
  const std::size_t results = operation.schema().returns().size();
  for (std::size_t i = stack->size() - results; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) value = on_fake(value.toTensor(), arguments);
  }
}

void record_stream(at::Tensor&, Stream) {}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty_dense);
  library.impl("empty_strided", &empty_strided);
  library.impl("record_stream", &record_stream);
  library.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

}  // namespace

namespace ronde_test {

bool use_device() {
  static const bool is_registered = [] {
    ronde::register_backend(
        "fake", ronde::test::fake_device_factory(std::make_shared<ronde::test::FakeDevice>(0)));
    return true;
  }();
  use_ronde();
  return is_registered;
}

bool is_complete() {
  return false;
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
