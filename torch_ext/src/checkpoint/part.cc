// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/part.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/store/checksum.h"

namespace ronde::detail {
namespace {

/// Lets LibTorch read an archive in memory.
class MemoryReader : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MemoryReader(std::string_view bytes) : bytes_(bytes) {}

  std::size_t size() const override { return bytes_.size(); }
  std::size_t read(std::uint64_t position, void* to, std::size_t count,
                   const char* /*what*/) const override {
    const std::string_view part = bytes_.substr(position, count);
    std::memcpy(to, part.data(), part.size());
    return part.size();
  }

 private:
  std::string_view bytes_;
};

std::optional<at::ScalarType> dtype_of(const std::string& name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    if (type != at::ScalarType::Undefined && name == c10::toString(type)) return type;
  }
  return std::nullopt;
}

}  // namespace

std::string describe_entry(const store::Entry& entry) {
  return entry.dtype + " " + describe_shape(entry.shape);
}

store::Entry entry_of(const std::string& name, const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
    throw UsageError("\"" + name +
                     "\" is a sparse, quantized or meta tensor. Add ronde::save_bytes() of it");
  }
  return {.name = name,
          .dtype = c10::toString(tensor.scalar_type()),
          .shape = tensor.sizes().vec(),
          .bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size()};
}

PartBytes make_part(const std::vector<Piece>& pieces) {
  c10::Dict<std::string, at::Tensor> all;
  for (const Piece& piece : pieces) all.insert(piece.entry.name, piece.values);
  PartBytes part{.data = torch::pickle_save(c10::IValue(all))};
  // LibTorch numbers tensors in the order of the dictionary.
  caffe2::serialize::PyTorchStreamReader reader(std::make_shared<MemoryReader>(part.text()));
  std::vector<store::Entry> entries;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    store::Entry entry = pieces[i].entry;
    if (entry.bytes > 0) entry.offset = reader.getRecordOffset("data/" + std::to_string(i));
    const std::string_view bytes = part.text().substr(entry.offset, entry.bytes);
    const void* const values = pieces[i].values.const_data_ptr();
    if (bytes.size() != entry.bytes || std::memcmp(bytes.data(), values, bytes.size()) != 0) {
      throw Error("LibTorch has written \"" + entry.name + "\" elsewhere than expected");
    }
    entry.checksum = store::checksum_text(bytes);
    entries.push_back(std::move(entry));
  }
  part.index = store::encode_index(entries);
  return part;
}

at::Tensor tensor_of(const store::Entry& entry, std::string_view bytes) {
  const std::optional<at::ScalarType> dtype = dtype_of(entry.dtype);
  std::uint64_t wanted = dtype ? c10::elementSize(*dtype) : 0;
  bool fits = dtype.has_value();
  for (const std::int64_t size : entry.shape) {
    fits = fits && !__builtin_mul_overflow(wanted, static_cast<std::uint64_t>(size), &wanted);
  }
  if (!fits || wanted != entry.bytes) {
    throw UsageError("\"" + entry.name + "\" is " + describe_entry(entry) + ", but has " +
                     std::to_string(entry.bytes) + " bytes");
  }
  at::Tensor tensor = at::empty(entry.shape, *dtype);
  const std::string_view part = bytes.substr(entry.offset, entry.bytes);
  if (!part.empty()) std::memcpy(tensor.mutable_data_ptr(), part.data(), part.size());
  return tensor;
}

}  // namespace ronde::detail
