// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/part.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "ronde/error.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

/// The file that torch::pickle_save() would make byte by byte, and the offset of each buffer in it,
/// by address.
struct Archive {
  std::vector<char> bytes = {};
  std::unordered_map<const void*, std::size_t> offsets = {};

  std::size_t add(const void* from, std::size_t size) {
    offsets[from] = bytes.size();
    const auto* const begin = static_cast<const char*>(from);
    bytes.insert(bytes.end(), begin, begin + size);
    return size;
  }
};

Archive pickled(const c10::IValue& value) {
  std::string text;
  torch::jit::Pickler pickler([&](const char* from, std::size_t size) { text.append(from, size); });
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  constexpr std::size_t kHeaders = 1024;  // more than a record's headers and padding
  std::size_t size = text.size() + (pickler.tensorData().size() + 4) * kHeaders;
  for (const at::Tensor& tensor : pickler.tensorData()) size += tensor.nbytes();
  Archive archive;
  archive.bytes.reserve(size);
  caffe2::serialize::PyTorchStreamWriter writer(
      [&](const void* from, std::size_t count) { return archive.add(from, count); });
  std::size_t number = 0;
  for (const at::Tensor& tensor : pickler.tensorData()) {
    writer.writeRecord("data/" + std::to_string(number++), tensor.const_data_ptr(),
                       tensor.nbytes());
  }
  writer.writeRecord("data.pkl", text.data(), text.size());
  writer.writeEndOfFile();
  return archive;
}

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
  Archive archive = pickled(all);
  PartBytes part{.data = std::move(archive.bytes)};
  std::vector<store::Entry> entries;
  for (const Piece& piece : pieces) {
    store::Entry entry = piece.entry;
    if (entry.bytes > 0) {
      const auto place = archive.offsets.find(piece.values.const_data_ptr());
      if (place == archive.offsets.end()) throw Error("LibTorch has not written " + entry.name);
      entry.offset = place->second;
    }
    entry.checksum = store::checksum_text(part.text().substr(entry.offset, entry.bytes));
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

int CheckpointLayout::copier(int of) const {
  if (!replicated) return -1;
  const int owner = writer(of);
  std::vector<std::vector<int>> hosts;  // in the order of their numbers
  const int last = *std::max_element(host_of.begin(), host_of.end());
  hosts.resize(static_cast<std::size_t>(last) + 1);
  for (int r = 0; r < size; ++r) {
    hosts[static_cast<std::size_t>(host_of[static_cast<std::size_t>(r)])].push_back(r);
  }
  const auto host = static_cast<std::size_t>(host_of[static_cast<std::size_t>(owner)]);
  const std::vector<int>& own = hosts[host];
  const auto place =
      static_cast<std::size_t>(std::find(own.begin(), own.end(), owner) - own.begin());
  for (std::size_t i = 1; i < hosts.size(); ++i) {
    const std::vector<int>& next = hosts[(host + i) % hosts.size()];
    if (!next.empty()) return next[place % next.size()];
  }
  return -1;
}

bool CheckpointLayout::writes() const {
  for (int of = 0; of < size; ++of) {
    if (writer(of) == rank || copier(of) == rank) return true;
  }
  return false;
}

std::vector<int> divide_among_ranks(const std::vector<std::uint64_t>& bytes, int ranks) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int> owners(bytes.size());
  std::vector<std::uint64_t> loads(static_cast<std::size_t>(ranks));
  for (const std::size_t item : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += bytes[item];
    owners[item] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

}  // namespace ronde::detail
