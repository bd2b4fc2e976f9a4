// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/base/visible_devices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <memory>

#include "backends/gpu/driver/nvml_api.h"
#include "ronde/error.h"

namespace ronde::cuda {
namespace {

constexpr const char* kVariable = "RONDE_VISIBLE_DEVICES";
constexpr std::size_t kLongestUuid = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE

bool is_uuid(const std::string& entry) {
  return entry.starts_with("GPU-");
}

[[noreturn]] void refuse_ordinals(const std::string& why) {
  throw UsageError(std::string(kVariable) + ": " + why +
                   ". Write UUIDs instead of ordinals (`nvidia-smi -L`)");
}

/// A GPU of the machine; one that NVML counts but does not show has a problem instead of a UUID.
struct Place {
  std::string uuid;
  std::string problem;
};

/// Asks NVML for the GPUs in the order of PCI addresses; throws Error.
std::vector<Place> ask(const NvmlApi& api) {
  const auto problem_of = [&](const auto& function, auto... arguments) -> std::string {
    const NvmlResult result = function(arguments...);
    if (result == kNvmlSuccess) return {};
    return std::string(function.symbol()) + ": " + api.error_string(result);
  };
  const auto expect = [&](const auto& function, auto... arguments) {
    const std::string problem = problem_of(function, arguments...);
    if (!problem.empty()) throw Error(problem);
  };
  expect(api.init);
  // NVML counts calls of init. Nothing can be done if its shutdown fails.
  const auto end = [](const NvmlApi* begun) { static_cast<void>(begun->shutdown()); };
  const std::unique_ptr<const NvmlApi, decltype(end)> session(&api, end);
  unsigned count = 0;
  expect(api.device_count, &count);
  std::vector<Place> places(count);
  for (unsigned index = 0; index < count; ++index) {
    Place& place = places[index];
    NvmlDevice device = nullptr;
    std::array<char, kLongestUuid> uuid{};
    place.problem = problem_of(api.device_by_index, index, &device);
    if (!place.problem.empty()) continue;
    place.problem =
        problem_of(api.device_uuid, device, uuid.data(), static_cast<unsigned>(uuid.size()));
    place.uuid = uuid.data();
  }
  return places;
}

std::vector<Place> places_of_machine(const vendor::SymbolLookup& symbols) {
  NvmlApi api;
  try {
    if (const std::string problem = api.load(symbols, kNvmlLibrary); !problem.empty()) {
      throw Error(problem);
    }
    return ask(api);
  } catch (const Error& error) {
    refuse_ordinals(
        std::string("ordinals count the GPUs of the machine, which NVML would know, but ") +
        error.what());
  }
}

}  // namespace

VisibleDevices::VisibleDevices(const std::vector<std::string>& entries,
                               const vendor::SymbolLookup& symbols)
    : all_(entries.empty()) {
  std::vector<Place> places;
  if (!std::all_of(entries.begin(), entries.end(), is_uuid)) places = places_of_machine(symbols);
  for (const std::string& entry : entries) {
    if (is_uuid(entry)) {
      beginnings_.push_back(entry);
      continue;
    }
    std::size_t ordinal = places.size();
    const char* const end = entry.data() + entry.size();
    const bool is_number = std::from_chars(entry.data(), end, ordinal).ptr == end;
    if (!is_number || ordinal >= places.size()) {
      throw UsageError(std::string(kVariable) + ": there is no GPU " + entry +
                       ": the machine has " + std::to_string(places.size()) + ", counted from 0");
    }
    const Place& place = places[ordinal];
    if (!place.problem.empty()) {
      refuse_ordinals("NVML does not show GPU " + entry + ": " + place.problem);
    }
    beginnings_.push_back(place.uuid);
  }
}

bool VisibleDevices::allows(const std::string& uuid) const {
  return all_ || std::any_of(beginnings_.begin(), beginnings_.end(),
                             [&](const std::string& each) { return uuid.starts_with(each); });
}

}  // namespace ronde::cuda
