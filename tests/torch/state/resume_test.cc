// SPDX-License-Identifier: Apache-2.0
// Random numbers of each rank, and a run that goes on in the middle of an epoch.
#include <set>

#include "tests/torch/checkpoint/training.h"

namespace ronde_test::resume_test {
namespace {

at::Tensor draw() {
  return torch::rand({5}, at::kDouble);
}

std::string text_of(torch::serialize::OutputArchive& archive) {
  std::stringstream stream;
  archive.save_to(stream);
  return stream.str();
}

void read(torch::serialize::InputArchive& archive, const std::string& bytes) {
  if (!bytes.empty()) archive.load_from(bytes.data(), bytes.size());
}

TEST_CASE("a rank's seed mixes seed and rank, and its lower half is its own", "[n1]") {
  // SplitMix64 started at this seed begins with 1234567, and started at that with the numbers
  // below, as published; started at the next seed, with 1, which MurmurHash3 of no bytes mixes.
  const std::vector<std::uint64_t> published = {6457827717110365317U, 3203168211198807973U,
                                                9817491932198370423U, 4593380528125082431U};
  for (std::size_t rank = 0; rank < published.size(); ++rank) {
    const std::uint64_t seed = ronde::rank_seed(0xa53c84059609e98eU, static_cast<int>(rank));
    CHECK(seed >> 32 == published[rank] >> 32);
  }
  CHECK((ronde::rank_seed(0xf8364607e9c949bdU, 0) & 0xffffffffU) == 0x514e28b7U);
  std::set<std::uint32_t> low;
  std::set<std::uint64_t> all;
  constexpr int kRanks = 100'000;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::uint64_t seed = ronde::rank_seed(1234567, rank);
    low.insert(static_cast<std::uint32_t>(seed));
    all.insert(seed);
    all.insert(ronde::rank_seed(1234568, rank));
  }
  CHECK(low.size() == kRanks);
  CHECK(all.size() == 2 * kRanks);
}

TEST_CASE("every rank draws its own numbers, the same again for the same seed") {
  ronde::seed_all_ranks(17);
  const at::Tensor mine = draw();
  const at::Tensor all = ronde::allgather(mine.reshape({1, -1}));
  for (int a = 0; a < ronde::size(); ++a) {
    torch::manual_seed(ronde::rank_seed(17, a));
    CHECK(torch::equal(draw(), all[a]));
    for (int b = 0; b < a; ++b) CHECK_FALSE(torch::equal(all[a], all[b]));
  }
  ronde::seed_all_ranks(18);
  CHECK_FALSE(torch::equal(draw(), mine));
  ronde::seed_all_ranks(17);
  CHECK(torch::equal(draw(), mine));
}

TEST_CASE("random states of all ranks go to the root's archive and back") {
  for (int root = 0; root < ronde::size(); ++root) {
    ronde::seed_all_ranks(5);
    draw();
    torch::randn({3});  // leaves a second normal number in the generator
    torch::serialize::OutputArchive archive;
    ronde::save_random_state(archive, {.root = root});
    const at::Tensor next = torch::randn({3});
    const std::string bytes = ronde::rank() == root ? text_of(archive) : std::string();
    torch::manual_seed(1);
    torch::serialize::InputArchive in;
    read(in, bytes);
    ronde::load_random_state(in, {.root = root});
    CHECK(torch::equal(torch::randn({3}), next));
  }
}

/// A checkpoint of so many ranks' states, those of rank 1 and of the others.
std::string bytes_of_states(int ranks, const at::Tensor& others, const at::Tensor& of_rank_1) {
  torch::serialize::OutputArchive archive(std::make_shared<torch::jit::CompilationUnit>());
  torch::serialize::OutputArchive parts(archive.compilation_unit());
  parts.write("ranks", c10::IValue(static_cast<std::int64_t>(ranks)));
  for (int rank = 0; rank < ranks; ++rank) {
    parts.write("rank" + std::to_string(rank),
                c10::IValue(Tensors{rank == 1 ? of_rank_1 : others}));
  }
  archive.write("random_state", parts);
  return text_of(archive);
}

TEST_CASE("random states of other ranks, or of none, are refused and change nothing", "[n2][n4]") {
  const int size = ronde::size();
  const ProcessSet set = ronde::add_process_set({size - 1, 0});
  ronde::seed_all_ranks(5);
  const auto check = [&](const std::string& bytes, const ronde::BroadcastOptions& options,
                         const std::string& part) {
    const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
    torch::serialize::InputArchive archive;
    read(archive, bytes);
    check_refused([&] { ronde::load_random_state(archive, options); }, {part});
    CHECK(torch::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  };
  torch::serialize::OutputArchive empty;
  empty.write("something", c10::IValue(1));
  check(text_of(empty), {},
        "rank 0: the archive has no \"random_state\": save_random_state writes it");
  check("", {.root = size}, "root_rank is");
  const at::Tensor state = at::detail::createCPUGenerator(9).get_state();
  check(bytes_of_states(3, state, state), {},
        "the random state of 3 ranks, here are " + std::to_string(size) + ". Go on with as many");
  // The state of one rank is invalid.
  check(bytes_of_states(size, state, at::ones({3}, at::kByte)), {}, "rank 1: ");
  check(bytes_of_states(size, state, state), {.root = ronde::rank() == 0 ? 0 : 1},
        "rank 1 has \"root rank 1\" where rank 0 has \"root rank 0\"");
  if (ronde::rank_in(set)) {
    torch::serialize::OutputArchive archive;
    ronde::save_random_state(archive, {.root = 1, .process_set = set});
    torch::serialize::InputArchive written;
    read(written, text_of(archive));
    CHECK(written.keys().size() == (ronde::rank() == 0 ? 1U : 0U));
  } else {
    torch::serialize::OutputArchive archive;
    check_refused([&] { ronde::save_random_state(archive, {.process_set = set}); }, {"not in"});
    check("", {.process_set = set}, "not in process set");
    check_refused([&] { ronde::seed_all_ranks(1, set); }, {"not in process set"});
  }
  ronde::remove_process_set(set);
}

template <typename T>
void add(torch::serialize::OutputArchive& archive, const std::string& key, const T& object) {
  torch::serialize::OutputArchive own(archive.compilation_unit());
  object.save(own);
  archive.write(key, own);
}

template <typename T>
void get(torch::serialize::InputArchive& archive, const std::string& key, T& object) {
  torch::serialize::InputArchive own;
  archive.read(key, own);
  object.load(own);
}

/// Saves a training by LibTorch's archives, in a file of rank 0.
void save(const checkpoints::Training& training, const std::string& file) {
  torch::serialize::OutputArchive archive;
  if (ronde::rank() == 0) {
    add(archive, "net", *training.net);
    add(archive, "adam", training.adam);
    add(archive, "warmup", training.warmup);
    add(archive, "sampler", training.sampler);
  }
  ronde::save_random_state(archive);  // of all ranks, into the archive of rank 0
  if (ronde::rank() == 0) archive.save_to(file);
}

void load(checkpoints::Training& training, const std::string& file) {
  torch::serialize::InputArchive archive;
  if (ronde::rank() == 0) {
    archive.load_from(file);
    get(archive, "net", *training.net);
    get(archive, "adam", training.adam);
    get(archive, "warmup", training.warmup);
    get(archive, "sampler", training.sampler);
  }
  ronde::broadcast_parameters(*training.net);
  ronde::broadcast_optimizer_state(training.adam);
  ronde::broadcast_object(training.warmup);
  ronde::broadcast_object(training.sampler);
  ronde::load_random_state(archive);  // to each rank its own
  training.steps = static_cast<int>(training.warmup.steps_taken());
}

TEST_CASE("a run that goes on in the middle of an epoch ends with the same bits") {
  const int epoch = static_cast<int>(checkpoints::kSamples) / 2 / ronde::size();
  const int end = 2 * epoch + 3;
  // In the warm-up, after it, and where an epoch ends.
  for (const int saved : {3, epoch - 1, epoch, epoch + 4}) {
    CAPTURE(saved);
    const checkpoints::SharedFolder folder;
    const std::string file = folder.path() / "checkpoint.pt";
    at::Tensor expected, expected_draw;
    {
      checkpoints::Training whole(folder.path(), {});
      whole.run(saved);
      save(whole, file);
      whole.run(end);
      expected = flatten(whole.net->parameters());
      expected_draw = draw();
    }
    checkpoints::Training resumed(folder.path(), {.seed = 2});
    load(resumed, file);
    CHECK(resumed.steps == saved);
    resumed.run(end);
    CHECK(torch::equal(flatten(resumed.net->parameters()), expected));
    CHECK(torch::equal(draw(), expected_draw));
    CHECK(same_on_all_ranks(flatten(resumed.net->parameters())));
  }
}

}  // namespace
}  // namespace ronde_test::resume_test
