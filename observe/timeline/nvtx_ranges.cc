// SPDX-License-Identifier: Apache-2.0
#include "observe/timeline/nvtx_ranges.h"

#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "ronde/collective.h"

namespace ronde {
namespace {

/// Ranges may end on another thread than the one on which they began: NVTX's start and end, not its
/// push and pop.
class NvtxRanges {
 public:
  explicit NvtxRanges(nvtxDomainHandle_t domain) : domain_(domain) {}

  void take(const EventRecord& event, std::string_view text) {
    if (getpid() != process_) return;  // in a child the mutex may be locked for ever
    const std::lock_guard lock(mutex_);
    switch (event.kind) {
      case EventKind::SpanBegun:
        return begin({EventKind::SpanBegun, 0, event.operation}, text);
      case EventKind::SpanEnded:
        return end({EventKind::SpanBegun, 0, event.operation});
      case EventKind::Submitted:
        if (event.then != ThenAlso::AnnouncedAndWaitBegun && event.then != ThenAlso::WaitBegun) {
          return;
        }
        return begin({EventKind::WaitBegun, 0, event.operation}, kWait);
      case EventKind::WaitBegun:
        return begin({EventKind::WaitBegun, 0, event.operation}, kWait);
      case EventKind::WaitEnded:
        return end({EventKind::WaitBegun, 0, event.operation});
      case EventKind::Started:
        return begin({EventKind::Started, event.set, event.bucket},
                     std::string(to_string(event.collective)) + " of " +
                         std::to_string(event.bytes) + " bytes by " + std::string(text));
      case EventKind::Finished:
        return end({EventKind::Started, event.set, event.bucket});
      case EventKind::StepEnded:
        return mark("end of step " + std::to_string(event.operation));
      case EventKind::Frozen:
        return mark("frozen");
      case EventKind::Thawed:
        return mark("thawed: " + std::string(text));
      default:
        return;
    }
  }

 private:
  static constexpr std::string_view kWait = "wait";

  using Key = std::tuple<EventKind, std::uint32_t, std::uint64_t>;

  static nvtxEventAttributes_t attributes(const std::string& text) {
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = text.c_str();
    return attributes;
  }

  void begin(const Key& key, std::string_view text) {
    const std::string name(text);
    const auto [place, is_new] = open_.try_emplace(key);
    if (!is_new) return;  // another thread waits for the same operation
    const nvtxEventAttributes_t range = attributes(name);
    place->second = nvtxDomainRangeStartEx(domain_, &range);
  }

  void end(const Key& key) {
    const auto place = open_.find(key);
    if (place == open_.end()) return;
    nvtxDomainRangeEnd(domain_, place->second);
    open_.erase(place);
  }

  void mark(const std::string& text) {
    const nvtxEventAttributes_t mark = attributes(text);
    nvtxDomainMarkEx(domain_, &mark);
  }

  const nvtxDomainHandle_t domain_;  ///< of the process: never destroyed
  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::map<Key, nvtxRangeId_t> open_;  ///< guarded by mutex_
};

}  // namespace

EventCallback nvtx_ranges() {
  // One of the process, made by one thread: NVTX starts itself in the first call.
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("ronde");
  if (domain == nullptr) return {};
  const auto ranges = std::make_shared<NvtxRanges>(domain);
  return [ranges](const EventRecord& event, std::string_view text) {
    try {
      ranges->take(event, text);
    } catch (...) {
      return;  // there is no memory for a name
    }
  };
}

}  // namespace ronde
