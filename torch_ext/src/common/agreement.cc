// SPDX-License-Identifier: Apache-2.0
// The ranks compare statements by allreduces of maxima, in which ranks that have joined may be
// missing; where they may not, the first is an allgather, which Ronde refuses then. It has the hash
// of the whole statement and its complement: if the greatest hash is the complement of the greatest
// complement, all hashes are equal, and nothing else is sent. Otherwise the hashes of all lines
// find the first line that differs, and each rank writes its text from there into a row of its own.
#include "torch_ext/src/common/agreement.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "core/src/base/fingerprint.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/run.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde::detail {
namespace {

// A statement travels as text: 'p' and the problem, or 'l' and the lines, or nothing.
std::string encode(const Statement& statement) {
  if (!statement.problem.empty()) return "p" + statement.problem;
  std::string text = "l";
  for (const std::string& line : statement.lines) text += line + "\n";
  return text;
}

Statement decode(std::string_view text) {
  Statement statement;
  statement.abstains = text.empty();
  if (text.starts_with('p')) {
    statement.problem = text.substr(1);
    return statement;
  }
  text.remove_prefix(std::min<std::size_t>(1, text.size()));
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    statement.lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return statement;
}

std::int64_t hash_of(std::string_view text) {
  return static_cast<std::int64_t>(fingerprint(text));
}

std::string first_difference(const std::vector<std::string>& mine,
                             const std::vector<std::string>& reference, const std::string& whose) {
  const auto [at, there] =
      std::mismatch(mine.begin(), mine.end(), reference.begin(), reference.end());
  const auto quoted = [](auto it, const auto& lines) {
    return it == lines.end() ? std::string("nothing more") : "\"" + *it + "\"";
  };
  return "has " + quoted(at, mine) + " where " + whose + " has " + quoted(there, reference);
}

}  // namespace

std::string numbered_name(const std::string& kind, ProcessSet set) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, RanksOfWorld>, int> constructed;
  const RanksOfWorld ranks = ranks_of_world(set);
  const std::lock_guard lock(mutex);
  return kind + std::to_string(constructed[{kind, ranks}]++);
}

namespace {

/// How often init() has started the world of kGlobalSet: each start counts from 0.
std::atomic<std::uint32_t> starts{0};

}  // namespace

void count_start(Runtime&) {
  ++starts;
}

RanksOfWorld ranks_of_world(ProcessSet set) {
  const bool is_default = set.world == kGlobalSet.world;
  return {{set.world, is_default ? starts.load() : 0}, ranks_of(set)};
}

std::string subject_of(const std::string& function, const std::string& name) {
  return "ronde::" + function + (name.empty() ? "" : "(" + name + ")");
}

std::string disagreement(const std::string& subject, const std::vector<Statement>& all,
                         const std::vector<int>& ranks, const std::string& advice) {
  const auto name = [&ranks](std::size_t place) {
    return "rank " + std::to_string(ranks.empty() ? static_cast<int>(place) : ranks.at(place));
  };
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].problem.empty()) continue;
    text += "\n  " + name(i) + ": " + all[i].problem;
  }
  if (!text.empty()) return subject + ": impossible on some ranks:" + text;
  const auto first = static_cast<std::size_t>(
      std::find_if(all.begin(), all.end(), [](const Statement& s) { return !s.abstains; }) -
      all.begin());
  for (std::size_t i = first + 1; i < all.size(); ++i) {
    if (all[i].abstains || all[i].lines == all[first].lines) continue;
    text += "\n  " + name(i) + " " + first_difference(all[i].lines, all[first].lines, name(first));
  }
  if (text.empty()) return {};
  return subject + ": the ranks differ. " + advice + ":" + text;
}

void check_member(const std::string& subject, ProcessSet set, const std::string& advice) {
  if (rank_in(set)) return;
  std::string members;
  for (const int member : ranks_of(set)) {
    if (!members.empty()) members += ',';
    members += std::to_string(member);
  }
  throw UsageError(subject + ": " + rank_text(set) + " is not in process set " +
                   std::to_string(set.id) + ", which has the ranks " + members +
                   (advice.empty() ? "" : ". " + advice));
}

void agree(const std::string& subject, const Statement& mine, ProcessSet set,
           const AgreementOptions& options) {
  const CallerWaits waits;
  AgreementOptions own = options;
  own.needs_all = true;
  const Comparison comparison(subject, mine, set, own);
  const std::string difference = comparison.difference();
  if (!difference.empty()) throw UsageError(difference);
}

Comparison::Comparison(std::string subject, const Statement& mine, ProcessSet set,
                       AgreementOptions options)
    : subject_(std::move(subject)), mine_(mine), set_(set), options_(std::move(options)) {
  const std::int64_t hash = hash_of(encode(mine_));
  const std::vector brief = {hash, ~hash, static_cast<std::int64_t>(mine_.lines.size())};
  const at::Tensor row = at::tensor(brief, at::kLong).view({1, -1});
  const std::string operation = name() + "/comparison";
  work_ = options_.needs_all
              ? allgather_async(
                    row, {.name = operation, .process_set = set_, .timeout = options_.timeout})
              : start_max(operation, row, set_, options_.timeout);
}

std::string Comparison::difference() const {
  const at::Tensor brief = work_.wait().amax(0);
  const auto* const greatest = brief.const_data_ptr<std::int64_t>();
  if (greatest[0] == ~greatest[1] && mine_.problem.empty()) return {};
  const std::size_t first = first_unequal_line(static_cast<std::size_t>(greatest[2]));
  Statement shown = mine_;
  shown.lines.erase(shown.lines.begin(), shown.lines.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                   first, shown.lines.size())));
  // The row of a rank that has joined stays empty.
  constexpr std::size_t kRow = 4096;
  const std::string text = encode(shown).substr(0, kRow);
  const std::vector<int> ranks = ranks_of(set_);
  const at::Tensor rows = at::zeros({static_cast<std::int64_t>(kRow * ranks.size())}, at::kByte);
  auto* const bytes = rows.mutable_data_ptr<std::uint8_t>();
  std::copy(text.begin(), text.end(),
            bytes + static_cast<std::size_t>(rank_in(set_).value()) * kRow);
  start_max(name() + "/compared", rows, set_, options_.timeout).wait();
  std::vector<Statement> all;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string row(bytes + i * kRow, bytes + (i + 1) * kRow);
    all.push_back(decode(row.substr(0, row.find('\0'))));
  }
  const std::string difference = disagreement(subject_, all, ranks, options_.advice);
  // The lines may differ behind the end of a row.
  return difference.empty() ? subject_ + ": the ranks differ. " + options_.advice : difference;
}

/// Returns the number of the first line, of `count`, that differs. A problem counts as the first
/// line, a missing line as empty.
std::size_t Comparison::first_unequal_line(std::size_t count) const {
  std::vector<std::int64_t> hashes;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string line = !mine_.problem.empty()   ? mine_.problem
                             : i < mine_.lines.size() ? mine_.lines[i]
                                                      : "";
    const std::int64_t hash = hash_of(line);
    hashes.insert(hashes.end(), {hash, ~hash});
  }
  if (count == 0) return 0;
  const at::Tensor all =
      start_max(name() + "/lines", at::tensor(hashes, at::kLong), set_, options_.timeout).wait();
  const auto* const greatest = all.const_data_ptr<std::int64_t>();
  std::size_t first = 0;
  while (first < count && greatest[2 * first] == ~greatest[2 * first + 1]) ++first;
  return first == count ? 0 : first;
}

}  // namespace ronde::detail
