// SPDX-License-Identifier: Apache-2.0
#include "backends/socket/key_value.h"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/src/base/rank_list.h"
#include "core/src/base/system.h"
#include "core/src/base/text.h"

// Note [Meeting through a key-value store]
// The exchanges of the bootstrap are numbered. In exchange n, rank r puts its blob at the key
// PREFIX/n/r and gets those of all others. The first exchange compares the ranks' settings, so that
// all ranks refuse settings that cannot work; the others build the tree (Note [Bootstrap of the
// tree]). Values are hexadecimal digits after a mark: stores that hold text only, or that do not
// distinguish an empty value from none, suffice.

namespace ronde::net {
namespace {

constexpr std::string_view kMark = "ronde1:";
constexpr std::size_t kLongestQuote = 40;

std::optional<std::string> from_hex(std::string_view digits) {
  const auto value_of = [](char digit) {
    return static_cast<int>(std::string_view("0123456789abcdef").find(digit));
  };
  if (digits.size() % 2 != 0 ||
      digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(16 * value_of(digits[i]) + value_of(digits[i + 1]));
  }
  return bytes;
}

/// The exchanges of one start.
class KeyValueExchange {
 public:
  KeyValueExchange(const KeyValueStart& start, KeyValueCalls& calls, Clock::time_point deadline)
      : start_(start), calls_(calls), deadline_(deadline) {}

  /// Implements Exchange.
  std::vector<std::string> operator()(std::string_view blob) {
    busy_ = true;
    put(key_of(start_.rank), std::string(kMark) + to_hex(blob));
    std::vector<std::string> blobs;
    for (int rank = 0; rank < start_.size; ++rank) {
      blobs.push_back(rank == start_.rank ? std::string(blob) : await(rank));
    }
    ++number_;
    busy_ = false;
    return blobs;
  }

  /// Whether an exchange has begun and not ended; an exception then comes from it.
  bool busy() const { return busy_; }

 private:
  std::string key_of(int rank) const {
    return start_.prefix + "/" + std::to_string(number_) + "/" + std::to_string(rank);
  }

  std::string await(int rank) {
    constexpr std::chrono::milliseconds kLongestPause{50};
    std::chrono::milliseconds pause{1};
    while (true) {
      if (const std::optional<std::string> value = get(key_of(rank))) return decode(rank, *value);
      if (Clock::now() >= deadline_) fail_waiting(rank);
      // The store offers no way to wait, so ask again.
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  /// Throws an error that names `first`, which is missing, and the missing ranks after it.
  [[noreturn]] void fail_waiting(int first) const {
    std::string list = std::to_string(first);
    for (int rank = first + 1; rank < start_.size; ++rank) {
      if (rank != start_.rank && !get(key_of(rank))) list += ", " + std::to_string(rank);
    }
    const auto waited = std::chrono::round<std::chrono::seconds>(Clock::now() - begun_);
    throw GroupError(first, rank_name(start_.rank) + " waited " + std::to_string(waited.count()) +
                                " s for rank(s) " + list + " of " + std::to_string(start_.size) +
                                " to appear in the key-value store (the first at key '" +
                                key_of(first) +
                                "'): they were not started, hang or died, or use another store or "
                                "prefix");
  }

  void put(const std::string& key, const std::string& value) const {
    guarded("put", key, [&] { start_.put(key, value); });
  }

  std::optional<std::string> get(const std::string& key) const {
    std::optional<std::string> value;
    guarded("get", key, [&] { value = start_.get(key); });
    return value;
  }

  template <typename Call>
  void guarded(const char* callback, const std::string& key, const Call& call) const {
    std::string reason;
    const std::string what = callback + ("('" + key) + "') of the key-value store";
    calls_.begin(start_.rank, what);
    try {
      call();
      calls_.end();
      return;
    } catch (...) {
      reason = exception_text();
    }
    calls_.end();
    throw GroupError(start_.rank,
                     rank_name(start_.rank) + " cannot start: " + what + " threw: " + reason);
  }

  std::string decode(int rank, std::string_view value) const {
    if (value.starts_with(kMark)) {
      if (std::optional<std::string> bytes = from_hex(value.substr(kMark.size()))) {
        return std::move(*bytes);
      }
    }
    throw UsageError(rank_name(start_.rank) + ": the key-value store holds '" +
                     std::string(value.substr(0, kLongestQuote)) + "' at key '" + key_of(rank) +
                     "', which no rank has put there: is the prefix in use for something else, or "
                     "does the store change values?");
  }

  const KeyValueStart& start_;
  KeyValueCalls& calls_;
  Clock::time_point begun_ = Clock::now();
  Clock::time_point deadline_;
  int number_ = 0;
  bool busy_ = false;
};

void check_callbacks(const KeyValueStart& start) {
  if (start.size > 1 && (!start.put || !start.get)) {
    throw UsageError(rank_name(start.rank) + " of " + std::to_string(start.size) +
                     ": several ranks need both put and get of a key-value store to meet");
  }
}

std::unique_ptr<Transport> make_transport(const KeyValueOptions& options) {
  const KeyValueStart& start = options.start;
  check_numbers(start.rank, start.size);
  check_callbacks(start);
  const auto deadline = Clock::now() + milliseconds_of(options.init_timeout_s);
  KeyValueCalls unused;
  KeyValueExchange exchange(start, options.calls ? *options.calls : unused, deadline);
  try {
    return connect_ranks("key-value", {start.rank, start.size, start.local_rank}, options, deadline,
                         std::ref(exchange));
  } catch (const GroupError& error) {
    if (exchange.busy()) throw;
    throw GroupError(error.failed_rank(),
                     std::string(error.what()) +
                         ". If the key-value store has served an earlier start under the prefix '" +
                         start.prefix +
                         "', these may be its addresses: give each start a prefix of its own");
  }
}

}  // namespace
}  // namespace ronde::net

namespace ronde {

void KeyValueCalls::begin(int rank, std::string what) {
  const std::lock_guard lock(mutex_);
  rank_ = rank;
  what_ = std::move(what);
  since_ = std::chrono::steady_clock::now();
}

void KeyValueCalls::end() {
  const std::lock_guard lock(mutex_);
  what_.clear();
}

std::optional<GroupError> KeyValueCalls::hanging() const {
  const std::lock_guard lock(mutex_);
  if (what_.empty()) return std::nullopt;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - since_;
  const auto tenths = static_cast<int>(10 * time.count());
  return GroupError(rank_,
                    rank_name(rank_) + " cannot start: " + what_ + " has not returned for " +
                        std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) +
                        " s, and RONDE_INIT_TIMEOUT_S is over: the store does not answer, or it "
                        "waits for a rank that is missing (the last number of the key). End this "
                        "process");
}

std::function<std::unique_ptr<Transport>()> key_value_transport_factory(KeyValueOptions options) {
  return [options = std::move(options)] { return net::make_transport(options); };
}

}  // namespace ronde
