// SPDX-License-Identifier: Apache-2.0
// Mutates a target's corpus and gives it the results. A child process runs the inputs; the parent
// reports how it died. docs/testing.md has the variables.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <random>

#include "tests/sweeps/fuzz/decoders/fuzz_target.h"

#ifdef __SANITIZE_ADDRESS__
// GCC 12 comes without the header that declares it.
extern "C" int __sanitizer_install_malloc_and_free_hooks(
    void (*after_malloc)(const volatile void* memory, std::size_t bytes),
    void (*before_free)(const volatile void* memory));
#endif

namespace ronde::fuzz {
namespace {

constexpr std::size_t kLongest = std::size_t{32} << 10;
/// An input of kLongest that nests in itself has more levels than fit.
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
/// What a decoder may ask for at once, beside a multiple of the input's size: sockets are read in
/// pieces of 1 MiB.
constexpr std::size_t kFixedAllocation = std::size_t{2} << 20;
constexpr std::size_t kAllocationPerByte = 16;
constexpr unsigned kSecondsPerInput = 60;

/// What the parent knows of the child.
struct Progress {
  std::uint64_t inputs = 0;
  std::uint64_t accepted = 0;
  std::size_t size = 0;
  std::array<char, kLongest> bytes;
};

Progress& progress() {
  static void* const kMemory =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *static_cast<Progress*>(kMemory);
}

/// Corpus::longest of this target.
std::size_t longest = kLongest;

// --- What a run of one input is checked for.

std::size_t most_at_once = std::numeric_limits<std::size_t>::max();

[[maybe_unused]] void check_allocation(const volatile void*, std::size_t bytes) {
  if (bytes <= most_at_once) return;
  most_at_once = std::numeric_limits<std::size_t>::max();
  std::fprintf(stderr, "asks for %zu bytes at once\n", bytes);
  std::abort();
}

void run_one(std::string_view input) {
  Progress& now = progress();
  now.size = std::min(input.size(), longest);
  std::copy_n(input.begin(), now.size, now.bytes.begin());
  ++now.inputs;
  ::alarm(kSecondsPerInput);
  // Memory of its own and of just this size, so that a byte read behind its end is found.
  const std::vector<std::uint8_t> copy(input.begin(), input.begin() + static_cast<long>(now.size));
  most_at_once = kFixedAllocation + kAllocationPerByte * now.size;
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
  most_at_once = std::numeric_limits<std::size_t>::max();
  now.accepted = accepted;
}

// --- Mutations.

constexpr std::array<std::uint64_t, 14> kEdges = {
    0,
    1,
    2,
    0x7f,
    0xff,
    0xffff,
    0x7fff'ffff,
    0x8000'0000,
    0xffff'ffff,
    std::uint64_t{1} << 32,
    std::uint64_t{1} << 61,
    std::uint64_t{1} << 63,
    ~std::uint64_t{0} - 7,
    ~std::uint64_t{0},
};

/// Overwrites `width` bytes.
void put(std::string& bytes, std::size_t at, std::uint64_t value, std::size_t width) {
  std::memcpy(bytes.data() + at, &value, width);
}

/// Truncated at `at`, and with a number there replaced by every edge.
void run_edges(const std::string& input, std::size_t at) {
  run_one(std::string_view(input).substr(0, at));
  for (const std::size_t width : {1U, 4U, 8U}) {
    if (at + width > input.size()) continue;
    for (const std::uint64_t edge : kEdges) {
      std::string changed = input;
      put(changed, at, edge, width);
      run_one(changed);
    }
  }
}

/// `bytes`, with its `length` bytes at `at` as often behind each other as there is room.
std::string filled_up(const std::string& bytes, std::size_t at, std::size_t length) {
  const std::string piece = bytes.substr(at, length);
  std::string pieces;
  while (bytes.size() + pieces.size() + piece.size() <= longest) pieces += piece;
  return std::string(bytes).insert(at, pieces);
}

/// What nests in itself nests deeply if its head is repeated, and heads are numbers of 8 bytes.
void run_nests(const std::string& input, std::size_t at) {
  for (std::size_t length = 8; length <= 64 && at + length <= input.size(); length += 8) {
    run_one(filled_up(input, at, length));
  }
}

/// A count at `at` of more than there is, but of no more than bytes follow.
void run_many(const std::string& input, std::size_t at) {
  if (at + sizeof(std::uint64_t) > input.size()) return;
  std::string many = input;
  put(many, at, longest / 2, sizeof(std::uint64_t));
  many.resize(longest);
  run_one(many);
}

/// At every place of every input, or at some where that would take too long.
void run_systematic(const std::vector<std::string>& inputs, std::size_t rounds) {
  std::size_t places = 0;
  for (const std::string& input : inputs) places += input.size();
  const std::size_t stride = 1 + 2 * (places / (rounds / 4));  // odd
  for (const std::string& input : inputs) {
    for (std::size_t at = 0; at < input.size(); at += stride) {
      run_edges(input, at);
      run_nests(input, at);
      run_many(input, at);
    }
  }
}

class Mutator {
 public:
  Mutator(std::uint64_t seed, std::vector<std::string> inputs)
      : random_(seed), inputs_(std::move(inputs)) {}

  std::string next() {
    std::string bytes = inputs_[below(inputs_.size())];
    do {
      mutate(bytes);
      bytes.resize(std::min(bytes.size(), longest));
    } while (below(2) == 0);
    return bytes;
  }

 private:
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }

  /// Somewhere in `bytes`, or at its end.
  std::size_t place(const std::string& bytes) { return below(bytes.size() + 1); }

  /// A piece of `bytes`, often as long as some numbers of 8 bytes are.
  std::string block(const std::string& bytes) {
    const std::size_t length = below(2) == 0 ? 8 * (1 + below(8)) : 1 + below(128);
    return bytes.substr(place(bytes), length);
  }

  void mutate(std::string& bytes) {
    switch (below(6)) {
      case 0:  // a bit
        if (!bytes.empty()) bytes[below(bytes.size())] ^= static_cast<char>(1U << below(8));
        break;
      case 1:  // a number
        overwrite(bytes, std::size_t{1} << below(4));
        break;
      case 2:
        repeat(bytes);
        break;
      case 3:
        lengthen(bytes, below(2) == 0 ? 4 : 8);
        break;
      default:
        splice(bytes);
    }
  }

  /// Another text for a piece of `bytes`, or for all that follows.
  void splice(std::string& bytes) {
    const std::string& other = inputs_[below(inputs_.size())];
    std::string text;
    if (below(3) == 0) {
      text.assign(below(2) == 0 ? 1 : 1 + below(16), static_cast<char>(below(256)));
    }
    if (below(2) == 0) text = below(3) == 0 ? other.substr(place(other)) : block(other);
    const std::size_t removed = below(2) == 0   ? text.size()
                                : below(2) == 0 ? std::string::npos
                                                : below(33);
    bytes.replace(place(bytes), removed, text);
  }

  void overwrite(std::string& bytes, std::size_t width) {
    if (bytes.size() < width) return;
    // Also what a length may be just below and just above, and a good part of it.
    const std::uint64_t value =
        below(4) == 0 ? (bytes.size() + below(3) - 1) >> below(3) : kEdges[below(kEdges.size())];
    put(bytes, below(bytes.size() - width + 1), value, width);
  }

  /// More text behind its length, if there is a length in one of some places.
  void lengthen(std::string& bytes, std::size_t width) {
    for (int trial = 0; trial < 16; ++trial) {
      const std::size_t at = place(bytes);
      std::uint64_t length = 0;
      if (at + width > bytes.size()) continue;
      std::memcpy(&length, bytes.data() + at, width);
      if (length == 0 || length > bytes.size() - at - width) continue;
      const std::size_t more = 1 + below(300);
      put(bytes, at, length + more, width);
      bytes.insert(at + width, more, 'm');
      return;
    }
  }

  /// A block once more behind itself, or as often as there is room.
  void repeat(std::string& bytes) {
    const std::size_t at = place(bytes);
    const std::string piece = bytes.substr(at, block(bytes).size());
    if (piece.empty()) return;
    bytes = below(2) == 0 ? bytes.insert(at, piece) : filled_up(bytes, at, piece.size());
  }

  std::mt19937_64 random_;
  const std::vector<std::string> inputs_;
};

// --- The child.

struct Plan {
  std::optional<std::string> only_input;
  std::uint64_t seed = 1;
};

void run_plan(const Plan& plan) {
  if (plan.only_input) return run_one(*plan.only_input);
  const Corpus all = corpus();
  longest = std::min(longest, all.longest);
  for (const std::string& input : all.valid) {
    const std::uint64_t before = accepted;
    run_one(input);
    require(accepted == before + 1, "a valid input is accepted");
  }
  for (const std::string& input : all.once_failed) run_one(input);
  run_systematic(all.valid, all.rounds);
  Mutator mutator(plan.seed, all.valid);
  for (std::size_t i = 0; i < all.rounds; ++i) run_one(mutator.next());
}

void* run_plan_on_thread(void* plan) {
  run_plan(*static_cast<const Plan*>(plan));
  return nullptr;
}

[[noreturn]] void run_child(Plan plan) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_install_malloc_and_free_hooks(&check_allocation, [](const volatile void*) {});
#endif
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  if (pthread_create(&thread, &attributes, &run_plan_on_thread, &plan) != 0) std::abort();
  pthread_join(thread, nullptr);
  std::exit(0);
}

// --- The parent.

std::string hex_of_input() {
  const Progress& last = progress();
  std::string text;
  for (std::size_t i = 0; i < last.size; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(last.bytes[i]));
    text += digits;
  }
  return text;
}

std::string bytes_of_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

/// The child's exit status as this process's.
int run(const char* program, const Plan& plan) {
  progress();  // mapped before the child is made
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) run_child(plan);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return EXIT_FAILURE;
  const Progress& last = progress();
  std::printf("%s: %llu inputs, of which %llu were valid; RONDE_TEST_SEED=%llu\n", program,
              static_cast<unsigned long long>(last.inputs),
              static_cast<unsigned long long>(last.accepted),
              static_cast<unsigned long long>(plan.seed));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return EXIT_SUCCESS;
  std::printf("FAILED with %s %d on an input of %zu bytes. To repeat it:\n  %s --hex %s\n",
              WIFSIGNALED(status) ? "signal" : "status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), last.size, program,
              hex_of_input().c_str());
  return EXIT_FAILURE;
}

Plan plan_of_environment() {
  Plan plan;
  const char* const soak = std::getenv("RONDE_TEST_SOAK");
  if (soak != nullptr && std::string_view(soak) == "1") plan.seed = std::random_device()();
  if (const char* const seed = std::getenv("RONDE_TEST_SEED")) plan.seed = std::stoull(seed);
  return plan;
}

}  // namespace
}  // namespace ronde::fuzz

int main(int count, char** arguments) {
  using namespace ronde::fuzz;
  Plan plan = plan_of_environment();
  if (count == 3 && std::string_view(arguments[1]) == "--hex") {
    plan.only_input = bytes_of_hex(arguments[2]);
  } else if (count != 1) {
    std::fprintf(stderr, "usage: %s [--hex <input>]\n", arguments[0]);
    return EXIT_FAILURE;
  }
  return run(arguments[0], plan);
}
