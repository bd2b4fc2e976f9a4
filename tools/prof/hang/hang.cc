// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/hang/hang.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <ostream>
#include <set>
#include <utility>

#include "observe/report/text.h"

namespace ronde::prof {
namespace {

/// An operation that some ranks wait for.
struct Stuck {
  OperationKey key;
  std::vector<int> waiting;  ///< have submitted it
  std::vector<int> missing;  ///< have not
  bool agreed = false;       ///< all had submitted it
  double age_s = 0;          ///< the longest wait
};

/// Waiting of a rank for an operation that others have not submitted.
struct Edge {
  OperationKey key;
  int missing = -1;
};

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string since(double seconds) {
  return fmt::format("since {:.1f} s", seconds);
}

class Hang {
 public:
  explicit Hang(Dumps dumps) : dumps_(std::move(dumps)) { find_stuck(); }

  void print(std::ostream& out) const {
    print_cycle(out);
    print_stuck(out);
    print_messages(out);
    const bool has_messages = std::ranges::any_of(dumps_.by_rank, [](const auto& each) {
      return std::ranges::any_of(each.second.operations, &DumpedOperation::is_open);
    });
    if (stuck_.empty() && !has_messages) {
      std::vector<int> silent;
      for (int rank = 0; rank < dumps_.ranks; ++rank) {
        if (!dumps_.by_rank.contains(rank)) silent.push_back(rank);
      }
      out << (silent.empty() ? "no operation was in flight on any rank"
                             : "no operation was in flight on the ranks that wrote a dump; " +
                                   ranks_text(silent) + " wrote none, or none that can be read")
          << '\n';
    }
    print_ranks(out);
  }

 private:
  void find_stuck() {
    std::map<OperationKey, Stuck> by_key;
    std::map<OperationKey, std::set<int>> members;
    for (const auto& [rank, dump] : dumps_.by_rank) {
      for (const DumpedOperation& operation : dump.operations) {
        if (!operation.is_open() || operation.peer >= 0) continue;
        Stuck& stuck = by_key[operation.key];
        stuck.key = operation.key;
        stuck.waiting.push_back(rank);
        stuck.agreed = stuck.agreed || operation.is_agreed();
        stuck.age_s = std::max(stuck.age_s, operation.age_s);
        members[operation.key].insert(operation.ranks.begin(), operation.ranks.end());
      }
    }
    for (auto& [key, stuck] : by_key) {
      const auto ends = std::ranges::unique(stuck.waiting);
      stuck.waiting.erase(ends.begin(), ends.end());
      std::set<int>& ranks = members[key];
      for (int rank = 0; ranks.empty() && rank < dumps_.ranks; ++rank) ranks.insert(rank);
      for (const int rank : ranks) {
        if (!stuck.agreed && !std::ranges::binary_search(stuck.waiting, rank)) {
          stuck.missing.push_back(rank);
        }
      }
      stuck_.push_back(std::move(stuck));
    }
    std::ranges::stable_sort(stuck_, std::ranges::greater(), &Stuck::age_s);
  }

  /// Prints sends and receives, which concern two ranks and have no missing ones.
  void print_messages(std::ostream& out) const {
    for (const auto& [rank, dump] : dumps_.by_rank) {
      for (const DumpedOperation& operation : dump.operations) {
        if (!operation.is_open() || operation.peer < 0) continue;
        const bool sends = std::get<1>(operation.key) == "send";
        out << "rank " << rank
            << (sends ? " waits to send a message to rank " : " waits for a message of rank ")
            << operation.peer << ": " << operation_text(operation.key) << ' '
            << since(operation.age_s) << '\n';
      }
    }
  }

  const Stuck* stuck(const OperationKey& key) const {
    const auto found = std::ranges::find(stuck_, key, &Stuck::key);
    return found == stuck_.end() ? nullptr : &*found;
  }

  /// The operation that the thread waits for; null if it does not wait, or the dumps lack it.
  const Stuck* awaited(const Dump& dump, const DumpedThread& thread) const {
    if (thread.doing != "wait") return nullptr;
    for (const DumpedOperation& operation : dump.operations) {
      const auto& [set, kind, name] = operation.key;
      if (operation.is_open() && thread.what.starts_with(kind + " '" + name + "'")) {
        return stuck(operation.key);
      }
    }
    return nullptr;
  }

  std::vector<Edge> edges(int rank) const {
    std::vector<Edge> found;
    const auto dump = dumps_.by_rank.find(rank);
    if (dump == dumps_.by_rank.end()) return found;
    for (const DumpedThread& thread : dump->second.threads) {
      const Stuck* const operation = awaited(dump->second, thread);
      if (operation == nullptr) continue;
      for (const int missing : operation->missing) found.push_back({operation->key, missing});
    }
    return found;
  }

  /// Ranks of which each waits for the next, and the last for the first; empty if there are none.
  std::vector<std::pair<int, Edge>> cycle() const {
    std::set<int> finished;
    std::vector<std::pair<int, Edge>> path;
    const auto visit = [&](auto& self, int rank) -> bool {
      const auto on_path =
          std::ranges::find(path, rank, [](const auto& step) { return step.first; });
      if (on_path != path.end()) {
        path.erase(path.begin(), on_path);
        return true;
      }
      if (!finished.insert(rank).second) return false;
      for (const Edge& edge : edges(rank)) {
        path.emplace_back(rank, edge);
        if (self(self, edge.missing)) return true;
        path.pop_back();
      }
      return false;
    };
    for (const auto& [rank, dump] : dumps_.by_rank) {
      if (visit(visit, rank)) return path;
    }
    return {};
  }

  std::string doing(const Dump& dump, const DumpedThread& thread) const {
    if (thread.doing == "span") return "is in span '" + thread.what + "' " + since(thread.age_s);
    if (thread.doing != "wait") return "is in the program " + since(thread.age_s);
    std::string text = "waits for " + thread.what + " " + since(thread.age_s);
    const Stuck* const operation = awaited(dump, thread);
    if (operation == nullptr) return text;
    if (operation->agreed) return text + ", which all ranks have submitted";
    if (!operation->missing.empty()) {
      text += ", which " + ranks_text(operation->missing) +
              (operation->missing.size() == 1 ? " has" : " have") + " not submitted";
    }
    return text;
  }

  std::string doing_instead(int rank, const OperationKey& key) const {
    const auto found = dumps_.by_rank.find(rank);
    if (found == dumps_.by_rank.end()) {
      const auto unreadable = dumps_.unreadable.find(rank);
      return unreadable == dumps_.unreadable.end()
                 ? "wrote no dump: it died or never got the signal"
                 : "has a dump that cannot be read: " + unreadable->second;
    }
    const Dump& dump = found->second;
    for (const DumpedOperation& operation : dump.operations) {
      if (!operation.is_open() || operation.peer >= 0) continue;
      if (std::get<2>(operation.key) == std::get<2>(key)) {
        return "has submitted " + operation_text(operation.key) + " instead";
      }
    }
    std::vector<std::string> parts;
    for (const DumpedThread& thread : dump.threads) parts.push_back(doing(dump, thread));
    if (parts.empty()) parts.emplace_back("has no thread in a call of Ronde");
    const auto last =
        std::ranges::find_if(dump.operations.rbegin(), dump.operations.rend(),
                             [](const DumpedOperation& each) { return each.state == "completed"; });
    if (last != dump.operations.rend()) {
      parts.push_back("its last operation that completed was " + operation_text(last->key) +
                      fmt::format(" {:.1f} s ago", last->done_s));
    }
    return joined(parts, "; ");
  }

  void print_cycle(std::ostream& out) const {
    const auto ranks = cycle();
    if (ranks.empty()) return;
    std::vector<int> numbers;
    std::vector<std::string> parts;
    for (const auto& [rank, edge] : ranks) {
      numbers.push_back(rank);
      parts.push_back(fmt::format("rank {} waits for {}, which rank {} has not submitted", rank,
                                  operation_text(edge.key), edge.missing));
    }
    std::ranges::sort(numbers);
    out << ranks_text(numbers) << " wait for each other, a cycle: " << joined(parts, "; ")
        << ". Submit operations in an order that lets one complete before it is waited for\n";
  }

  void print_stuck(std::ostream& out) const {
    std::map<std::pair<std::vector<int>, std::vector<int>>, std::vector<const Stuck*>> alike;
    std::vector<const Stuck*> first_of_each;
    for (const Stuck& stuck : stuck_) {
      auto& group = alike[{stuck.missing, stuck.waiting}];
      if (group.empty()) first_of_each.push_back(&stuck);
      group.push_back(&stuck);
    }
    for (const Stuck* const stuck : first_of_each) {
      const std::size_t more = alike.at({stuck->missing, stuck->waiting}).size() - 1;
      std::string what = operation_text(stuck->key);
      if (more > 0) what += " and " + count_text(static_cast<double>(more), "other operation");
      const std::string who = ranks_text(stuck->waiting) +
                              (stuck->waiting.size() == 1 ? " waits" : " wait") + " for " +
                              since(stuck->age_s);
      if (stuck->missing.empty()) {
        out << what
            << (stuck->agreed ? " was submitted by all its ranks and does not end on "
                              : " was submitted by all its ranks, but none was told so: ")
            << ranks_text(stuck->waiting) << ' ' << since(stuck->age_s) << '\n';
      }
      for (const int rank : stuck->missing) {
        out << "rank " << rank << " has not submitted " << what << ", which " << who << "; it "
            << doing_instead(rank, stuck->key) << '\n';
      }
    }
  }

  void print_ranks(std::ostream& out) const {
    out << '\n';
    for (int rank = 0; rank < dumps_.ranks; ++rank) {
      out << "rank " << rank;
      const auto found = dumps_.by_rank.find(rank);
      if (found == dumps_.by_rank.end()) {
        out << ' ' << doing_instead(rank, {}) << '\n';
        continue;
      }
      const Dump& dump = found->second;
      out << fmt::format(" (host {}, pid {}, dump by {})", dump.host, dump.pid, dump.reason);
      const auto open = std::ranges::count_if(dump.operations, &DumpedOperation::is_open);
      std::vector<std::string> parts;
      for (const DumpedThread& thread : dump.threads) parts.push_back(doing(dump, thread));
      parts.push_back(count_text(static_cast<double>(open), "operation") + " in flight");
      out << ": " << joined(parts, "; ") << '\n';
      if (!dump.text.empty()) out << "  " << dump.text << '\n';
    }
  }

  Dumps dumps_;
  std::vector<Stuck> stuck_;  ///< the longest wait first
};

}  // namespace

void print_hang(const fs::path& folder, std::ostream& out) {
  Hang(read_dumps(folder)).print(out);
}

}  // namespace ronde::prof
