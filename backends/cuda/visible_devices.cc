// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/visible_devices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <memory>

#include "backends/cuda/nvml_api.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

constexpr const char* kVariable = "RONDE_VISIBLE_DEVICES";
constexpr std::size_t kLongestUuid = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE

bool is_uuid(const std::string& entry) {
  return entry.starts_with("GPU-");
}

/// What NVML says, between its beginning and its end; throws Error.
std::vector<std::string> ask(const NvmlApi& api) {
  const auto expect = [&](const char* symbol, NvmlResult result) {
    if (result != kNvmlSuccess) throw Error(std::string(symbol) + ": " + api.error_string(result));
  };
  expect(api.init.symbol(), api.init());
  // It counts how often it has begun. There is nothing to do where its end fails.
  const auto end = [](const NvmlApi* begun) { static_cast<void>(begun->shutdown()); };
  const std::unique_ptr<const NvmlApi, decltype(end)> session(&api, end);
  unsigned count = 0;
  expect(api.device_count.symbol(), api.device_count(&count));
  std::vector<std::string> uuids;
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice device = nullptr;
    std::array<char, kLongestUuid> uuid{};
    expect(api.device_by_index.symbol(), api.device_by_index(index, &device));
    expect(api.device_uuid.symbol(),
           api.device_uuid(device, uuid.data(), static_cast<unsigned>(uuid.size())));
    uuids.emplace_back(uuid.data());
  }
  return uuids;
}

/// The UUIDs of all GPUs of the machine, in the order of their PCI addresses.
std::vector<std::string> uuids_of_machine(const vendor::SymbolLookup& symbols) {
  NvmlApi api;
  try {
    if (const std::string problem = api.load(symbols, kNvmlLibrary); !problem.empty()) {
      throw Error(problem);
    }
    return ask(api);
  } catch (const Error& error) {
    throw UsageError(std::string(kVariable) +
                     ": ordinals count the GPUs of the machine, which NVML would know, but " +
                     error.what() + ". Write UUIDs instead of ordinals (`nvidia-smi -L`)");
  }
}

}  // namespace

VisibleDevices::VisibleDevices(const std::vector<std::string>& entries,
                               const vendor::SymbolLookup& symbols)
    : all_(entries.empty()) {
  std::vector<std::string> of_machine;
  if (!std::all_of(entries.begin(), entries.end(), is_uuid)) {
    of_machine = uuids_of_machine(symbols);
  }
  for (const std::string& entry : entries) {
    if (is_uuid(entry)) {
      beginnings_.push_back(entry);
      continue;
    }
    std::size_t ordinal = of_machine.size();
    const char* const end = entry.data() + entry.size();
    const bool is_number = std::from_chars(entry.data(), end, ordinal).ptr == end;
    if (!is_number || ordinal >= of_machine.size()) {
      throw UsageError(std::string(kVariable) + ": there is no GPU " + entry +
                       ": the machine has " + std::to_string(of_machine.size()) +
                       ", counted from 0");
    }
    beginnings_.push_back(of_machine[ordinal]);
  }
}

bool VisibleDevices::allows(const std::string& uuid) const {
  return all_ || std::any_of(beginnings_.begin(), beginnings_.end(),
                             [&](const std::string& each) { return uuid.starts_with(each); });
}

}  // namespace ronde::cuda
