// SPDX-License-Identifier: Apache-2.0
#include "observe/dump.h"

#include <unistd.h>

#include <ctime>
#include <utility>

#include "observe/base/figures_json.h"
#include "observe/base/system_sampler.h"
#include "ronde/build_info.h"

namespace ronde {
namespace {

using Json = nlohmann::ordered_json;

std::string wall_time() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[sizeof "2026-01-01T00:00:00Z"];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

bool is_message(Collective collective) {
  return collective == Collective::Send || collective == Collective::Recv;
}

/// Operations and threads as events show them.
class Picture {
 public:
  void take(const Event& event) {
    const double time = us_of(event.time_ns);
    switch (event.kind) {
      case EventKind::Submitted:
        order_.push_back(event.operation);
        operations_[event.operation] = {{"number", event.operation},
                                        {"kind", to_string(event.collective)},
                                        {"name", event.text},
                                        {"set", event.set},
                                        {"bytes", event.bytes}};
        if (is_message(event.collective)) operations_[event.operation]["peer"] = event.rank;
        return set_state(event.operation, "submitted", time);
      case EventKind::Announced:
        return set_state(event.operation, "announced", time);
      case EventKind::Agreed:
        set_state(event.operation, "agreed", time);
        buckets_[{event.set, event.bucket}].push_back(event.operation);
        if (Json* const operation = find(event.operation)) {
          (*operation)["last_rank"] = event.rank;
          (*operation)["bucket"] = event.bucket;
        }
        return;
      case EventKind::Started:
        for (const std::uint64_t number : buckets_[{event.set, event.bucket}]) {
          set_state(number, "started", time);
        }
        return;
      case EventKind::Finished:
        buckets_.erase({event.set, event.bucket});
        return;
      case EventKind::Completed:
        return set_state(event.operation, "completed", time);
      case EventKind::Failed:
        return set_state(event.operation, "failed", time, "completed");
      case EventKind::Abandoned:
        failed_ = true;
        if (Json* const operation = find(event.operation)) (*operation)["abandoned_us"] = time;
        return;
      case EventKind::WaitBegun:
        return begin(event.thread, "wait", name_of(event.operation), event);
      case EventKind::SpanBegun:
        return begin(event.thread, "span", event.text, event);
      case EventKind::WaitEnded:
      case EventKind::SpanEnded:
        return end(event);
      default:
        return;
    }
  }

  Json operations(const RankSnapshot& of) const {
    Json result = Json::array();
    for (const std::uint64_t number : order_) {
      Json& operation = result.emplace_back(operations_.at(number));
      const auto ranks = of.ranks_of_sets.find(operation.at("set").get<std::uint32_t>());
      operation["ranks"] = ranks == of.ranks_of_sets.end() ? std::vector<int>() : ranks->second;
      if (operation.contains("peer")) operation["ranks"] = {of.rank, operation.at("peer")};
    }
    return result;
  }

  /// The innermost wait or span of each thread.
  Json threads() const {
    Json result = Json::array();
    for (const auto& [thread, doings] : threads_) {
      const Doing now =
          doings.open.empty() ? Doing{"program", "", 0, doings.last_us} : doings.open.back();
      result.push_back({{"thread", thread},
                        {"doing", now.kind},
                        {"what", now.what},
                        {"since_us", now.since_us}});
    }
    return result;
  }

 private:
  struct Doing {
    std::string kind, what;
    std::uint64_t number = 0;
    double since_us = 0;
  };
  struct Thread {
    std::vector<Doing> open;
    double last_us = 0;  ///< the end of what it did last
  };

  Json* find(std::uint64_t number) {
    const auto found = operations_.find(number);
    return found == operations_.end() ? nullptr : &found->second;
  }

  void set_state(std::uint64_t number, const std::string& state, double time,
                 const std::string& stamp = {}) {
    Json* const operation = find(number);
    if (operation == nullptr) return;
    (*operation)["state"] = state;
    (*operation)[(stamp.empty() ? state : stamp) + "_us"] = time;
  }

  std::string name_of(std::uint64_t number) {
    const Json* const operation = find(number);
    if (operation == nullptr) return "an operation";
    return operation->at("kind").get<std::string>() + " '" +
           operation->at("name").get<std::string>() + "'";
  }

  void begin(std::uint16_t thread, const char* kind, std::string what, const Event& event) {
    threads_[thread].open.push_back({kind, std::move(what), event.operation, us_of(event.time_ns)});
  }

  /// A span may end on another thread than that where it began.
  void end(const Event& event) {
    if (failed_) return;  // the failure ended it: what it waited for is what matters
    const std::string kind = event.kind == EventKind::WaitEnded ? "wait" : "span";
    threads_[event.thread].last_us = us_of(event.time_ns);
    for (auto& [thread, doings] : threads_) {
      if (kind == "wait" && thread != event.thread) continue;
      std::erase_if(doings.open, [&](const Doing& doing) {
        return doing.kind == kind && doing.number == event.operation;
      });
    }
  }

  bool failed_ = false;  ///< the group has
  std::map<std::uint64_t, Json> operations_;
  std::vector<std::uint64_t> order_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<std::uint64_t>> buckets_;
  std::map<std::uint16_t, Thread> threads_;
};

}  // namespace

Json to_json(const RankSnapshot& of, std::string_view reason, const std::string& text) {
  Picture picture;
  for (const Event& event : of.events) picture.take(event);
  return {{"ronde_dump", 1},
          {"version", build_info::kVersion},
          {"world", of.world},
          {"rank", of.rank},
          {"ranks", of.ranks},
          {"host", host_name()},
          {"pid", getpid()},
          {"reason", reason},
          {"text", text},
          {"at_us", us_of(of.at_ns)},
          {"wall", wall_time()},
          {"threads", picture.threads()},
          {"operations", picture.operations(of)},
          {"lost_events", of.lost_events},
          {"counters", counters_json(of.counters)}};
}

}  // namespace ronde
