// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/compression.h"

#include <utility>

#include "torch_ext/src/gradients/gradient_exchange.h"

namespace ronde {
namespace {

/// Leaves the conversion to the engine, which does it in the pass that packs and unpacks.
class OnTheWire final : public CompressedGradient {
 public:
  explicit OnTheWire(DataType wire_dtype) : wire_dtype_(wire_dtype) {}

  std::vector<CompressedPart> compress(const at::Tensor& gradient,
                                       const GradientReduction&) override {
    return {{.tensor = gradient, .wire_dtype = wire_dtype_}};
  }

  std::vector<CompressedPart> decompress(const std::vector<at::Tensor>& results,
                                         const at::Tensor& gradient) override {
    if (!results.front().is_same(gradient)) gradient.copy_(results.front());
    return {};
  }

 private:
  const DataType wire_dtype_;
};

class HalfPrecision final : public Compression {
 public:
  HalfPrecision(std::string name, DataType wire_dtype)
      : name_(std::move(name)), wire_dtype_(wire_dtype) {}

  std::string description() const override { return name_; }

  std::unique_ptr<CompressedGradient> make(const std::string&,
                                           const at::Tensor& parameter) override {
    const at::ScalarType type = parameter.scalar_type();
    if (type != at::kFloat && type != at::kDouble) return nullptr;
    return std::make_unique<OnTheWire>(wire_dtype_);
  }

  std::optional<DataType> sparse_dtype() const override { return wire_dtype_; }

 private:
  const std::string name_;
  const DataType wire_dtype_;
};

}  // namespace

std::optional<DataType> detail::wire_dtype_of(const std::shared_ptr<Compression>& compression) {
  if (dynamic_cast<const HalfPrecision*>(compression.get()) == nullptr) return std::nullopt;
  return compression->sparse_dtype();
}

std::shared_ptr<Compression> Compression::fp16() {
  return std::make_shared<HalfPrecision>("fp16", DataType::F16);
}

std::shared_ptr<Compression> Compression::bf16() {
  return std::make_shared<HalfPrecision>("bf16", DataType::BF16);
}

}  // namespace ronde
