// SPDX-License-Identifier: Apache-2.0
// Objects of every kind to all ranks, from all ranks, and to one. Errors occur on all ranks, and
// change no object.
#include "tests/torch/state/objects.h"
#include "tests/support/processes/file_limit.h"
#include "tests/torch/layouts.h"

namespace ronde_test::objects_test {
namespace {

template <typename T>
void check_moves(const std::string& kind, const std::function<T(int)>& of) {
  CAPTURE(kind);
  const auto size = static_cast<std::size_t>(ronde::size());
  // A repeated name is negotiated through the cache.
  for (int round = 0; round < 2; ++round) {
    for (int root = 0; root < ronde::size(); ++root) {
      T mine = of(ronde::rank());
      ronde::broadcast_object(mine, {.root = root});
      CHECK(same(mine, of(root)));
      const std::vector<T> gathered =
          ronde::gather_object(of(ronde::rank()), {.name = "g", .root = root});
      REQUIRE(gathered.size() == (ronde::rank() == root ? size : 0));
      for (std::size_t r = 0; r < gathered.size(); ++r) {
        CHECK(same(gathered[r], of(static_cast<int>(r))));
      }
    }
    const std::vector<T> all = ronde::allgather_object(of(ronde::rank()));
    REQUIRE(all.size() == size);
    for (std::size_t r = 0; r < all.size(); ++r) CHECK(same(all[r], of(static_cast<int>(r))));
  }
}

template <typename Bytes>
Bytes bytes_of(std::size_t count, int rank) {
  Bytes bytes(count, typename Bytes::value_type{});
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] =
        static_cast<typename Bytes::value_type>((i * 7 + static_cast<std::size_t>(rank)) % 256);
  }
  return bytes;
}

template <typename Bytes>
void check_bytes() {
  for (const std::size_t count : {0U, 1U, 100U, 300'000U}) {
    check_moves<Bytes>("equal sizes", [&](int rank) { return bytes_of<Bytes>(count, rank); });
    check_moves<Bytes>("empty on rank 0", [&](int rank) {
      return bytes_of<Bytes>(count * static_cast<std::size_t>(rank), rank);
    });
  }
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width = 3, double value = 0)
      : linear(register_module("linear", torch::nn::Linear(2, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(width))) {
    frozen = register_parameter("frozen", at::ones({2}), /*requires_grad=*/false);
    register_parameter("none", at::Tensor(), /*requires_grad=*/false);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.fill_(value);
    norm->num_batches_tracked.fill_(static_cast<std::int64_t>(value));
  }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
  at::Tensor frozen;
};
TORCH_MODULE(Net);

Tensors everything(const torch::nn::Module& module) {
  Tensors all = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) all.push_back(buffer);
  return all;
}

TEST_CASE("plain bytes of any length are sent as they are") {
  check_bytes<std::string>();
  check_bytes<std::vector<char>>();
  check_bytes<std::vector<signed char>>();
  check_bytes<std::vector<unsigned char>>();
  check_bytes<std::vector<std::byte>>();
}

TEST_CASE("tensors and lists of tensors travel whatever they are") {
  check_moves<at::Tensor>("own shapes and dtypes", own_tensor);
  check_moves<at::Tensor>("undefined on odd ranks",
                          [](int rank) { return rank % 2 == 0 ? own_tensor(rank) : at::Tensor(); });
  for (const at::ScalarType dtype : kMovedDtypes) {
    check_moves<at::Tensor>(at::toString(dtype), [&](int rank) {
      const at::Tensor numbers = whole_numbers({2, 3}, rank, 0, dtype).conj();  // lazily
      return rank % 2 == 0 ? numbers : numbers[0][0];  // without a dimension
    });
  }
  check_moves<at::Tensor>("bits of NaNs", [](int rank) {
    return at::full({3}, 0x7fc12345 + rank, at::kInt).view(at::kFloat);
  });
  check_moves<at::Tensor>("no elements", [](int rank) { return at::ones({rank, 0}); });
  check_moves<at::Tensor>("requires grad", [](int rank) {
    return at::full({rank + 1}, 2.0).requires_grad_(rank % 2 == 0);
  });
  check_moves<Tensors>("lists", [](int rank) {
    Tensors tensors(static_cast<std::size_t>(rank));
    for (at::Tensor& tensor : tensors) tensor = own_tensor(rank);
    if (rank > 1) tensors[1] = at::Tensor();
    return tensors;
  });
}

TEST_CASE("quantized tensors travel as objects alone", "[n2]") {
  const at::Tensor values = at::ones({2, 2}) * (1 + ronde::rank());
  at::Tensor quantized = at::quantize_per_tensor(values, 0.1 * (1 + ronde::rank()), 0, at::kQInt8);
  check_refused([&] { ronde::broadcast(quantized); }, {"quantised", "broadcast_object()"});
  ronde::broadcast_object(quantized, {.root = 1});
  CHECK(near(quantized.dequantize(), at::full({2, 2}, 2.0), 1e-6));
}

TEST_CASE("IValues and the program's own types travel") {
  check_moves<c10::IValue>("none, number, text, list, tuple", [](int rank) {
    const std::vector<c10::IValue> values = {
        c10::IValue(), c10::IValue(std::int64_t{1} << 40), c10::IValue("text"),
        c10::ivalue::Tuple::create({3, "x", std::vector<double>{1.5, -0.0}, own_tensor(2)})};
    return values[static_cast<std::size_t>(rank) % values.size()];
  });
  check_moves<c10::IValue>("dictionary", [](int rank) {
    c10::Dict<std::string, at::Tensor> dictionary;
    for (int i = 0; i <= rank; ++i) dictionary.insert(std::to_string(i), own_tensor(i));
    return c10::IValue(dictionary);
  });
  check_moves<Note>("a type of the program", [](int rank) {
    return Note{"note " + std::string(static_cast<std::size_t>(rank), 'x'), own_tensor(rank)};
  });
}

TEST_CASE("values are new on every rank but the root, and only views' elements travel", "[n2]") {
  const at::Tensor large = at::full({1 << 18}, 1.0 + ronde::rank());
  at::Tensor mine = large.slice(0, 0, 2);
  CHECK(ronde::save_bytes(mine).size() < 4096);
  ronde::broadcast_object(mine);
  CHECK(torch::equal(mine, at::ones({2})));
  CHECK(torch::equal(large, at::full({1 << 18}, 1.0 + ronde::rank())));
  CHECK(mine.is_alias_of(large) == (ronde::rank() == 0));
}

TEST_CASE("broadcast_object gives modules, optimizers and samplers the root's values in place") {
  for (int root = 0; root < ronde::size(); ++root) {
    Net net(3, 1.0 + ronde::rank());
    const Net expected(3, 1.0 + root);
    const at::Tensor weight = net->linear->weight;
    ronde::broadcast_object(net, {.root = root});
    CHECK(same(everything(*net), everything(*expected)));
    CHECK(net->linear->weight.is_same(weight));
    Net other(3, 10.0 + ronde::rank());
    ronde::broadcast_object(*other, {.name = "itself", .root = root});
    CHECK(same(everything(*other), everything(*Net(3, 10.0 + root))));
    const std::shared_ptr<NetImpl> pointer = Net(3, 20.0 + ronde::rank()).ptr();
    ronde::broadcast_object(pointer, {.name = "pointer", .root = root});
    CHECK(same(everything(*pointer), everything(*Net(3, 20.0 + root))));
    torch::optim::Adam adam(net->parameters(), 0.25 + ronde::rank());
    ronde::broadcast_object(adam, {.root = root});
    CHECK(adam.param_groups()[0].options().get_lr() == 0.25 + root);
    // The sampler has no default constructor.
    ronde::DistributedSampler sampler(100, {.seed = 3});
    if (ronde::rank() == root) sampler.set_epoch(4, 8);
    ronde::broadcast_object(sampler, {.root = root});
    CHECK(sampler.epoch() == 4);
    CHECK(sampler.position() == 8);
  }
}

static_assert(ronde::detail::Object<Net> && !ronde::detail::ValueObject<Net>);
static_assert(!ronde::detail::ValueObject<torch::optim::Adam>);
static_assert(!ronde::detail::ValueObject<std::shared_ptr<NetImpl>>);
static_assert(!ronde::detail::Object<int> && !ronde::detail::Object<std::vector<double>>);
static_assert(ronde::detail::Object<ronde::DistributedSampler>);

TEST_CASE("objects travel within process sets, whose numbers roots are", "[n2][n4]") {
  std::vector<int> ranks;
  for (int rank = ronde::size() - 1; rank > 0; --rank) ranks.push_back(rank);
  const ProcessSet set = ronde::add_process_set(ranks);
  if (const auto within = ronde::rank_in(set)) {
    for (int root = 0; root < static_cast<int>(ranks.size()); ++root) {
      const int global_root = ranks[static_cast<std::size_t>(root)];
      at::Tensor tensor = own_tensor(ronde::rank());
      ronde::broadcast_object(tensor, {.root = root, .process_set = set});
      CHECK(same(tensor, own_tensor(global_root)));
      const std::string text(static_cast<std::size_t>(ronde::rank()), 'x');
      const auto all = ronde::allgather_object(text, {.process_set = set});
      const auto gathered = ronde::gather_object(text, {.root = root, .process_set = set});
      CHECK(gathered.size() == (*within == root ? ranks.size() : 0));
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        CHECK(all[i].size() == static_cast<std::size_t>(ranks[i]));
        if (*within == root) CHECK(gathered[i] == all[i]);
      }
    }
  } else {
    std::string text = "outside";
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { ronde::broadcast_object(text, {.process_set = set}); },
             [&] { ronde::broadcast_object(net, {.process_set = set}); },
             [&] { ronde::broadcast_object(sgd, {.process_set = set}); },
             [&] { ronde::allgather_object(text, {.process_set = set}); },
             [&] { ronde::gather_object(text, {.process_set = set}); }}) {
      check_refused(call, {"rank 0 is not in process set"});
    }
    CHECK(text == "outside");
  }
  ronde::remove_process_set(set);
}

// Every rank's text of the UsageError is the same, and has this part.
std::string refused_alike(const std::function<void()>& call, const std::string& part) {
  std::string text = check_refused(call, {part});
  CHECK(same_on_all_ranks(text));
  return text;
}

// Checks this for each function, with that root.
template <typename T>
void refused_by_all(T& object, const std::string& part, int root = 0) {
  refused_alike([&] { ronde::broadcast_object(object, {.root = root}); }, part);
  refused_alike([&] { ronde::allgather_object(object); }, part);
  refused_alike([&] { ronde::gather_object(object, {.root = root}); }, part);
}

void check_alive() {
  std::string text = "rank " + std::to_string(ronde::rank());
  ronde::broadcast_object(text, {.root = ronde::size() - 1});
  CHECK(text == "rank " + std::to_string(ronde::size() - 1));
}

TEST_CASE("roots that differ or do not exist are refused", "[n2][n4]") {
  std::string text = "mine";
  const int last = ronde::size() - 1;
  const std::string of_last = std::to_string(last);
  const auto check = [&](int root, const std::string& part) {
    refused_alike([&] { ronde::broadcast_object(text, {.root = root}); }, part);
    refused_alike([&] { ronde::gather_object(text, {.root = root}); }, part);
  };
  check(ronde::rank() == last ? last : 0,
        "rank " + of_last + " has \"root rank " + of_last + "\" where rank 0 has \"root rank 0\"");
  check(-1, "root_rank is -1");
  check(ronde::size(), "root_rank is " + std::to_string(ronde::size()));
  CHECK(text == "mine");
  check_alive();
}

TEST_CASE("types that differ are refused", "[n2]") {
  std::string text = "mine";
  at::Tensor tensor = at::ones({2});
  const std::string part =
      "objects of one type and shape, on every rank:\n  rank 1 has \"at::Tensor\" where rank 0 has "
      "\"bytes\"";
  if (ronde::rank() == 0) {
    refused_by_all(text, part);
  } else {
    refused_by_all(tensor, part);
  }
  CHECK(text == "mine");
  CHECK(torch::equal(tensor, at::ones({2})));
  check_alive();
}

TEST_CASE("modules that differ are refused by their first difference", "[n2][n4]") {
  const int last = ronde::size() - 1;
  const bool is_last = ronde::rank() == last;
  const std::string who = "rank " + std::to_string(last);
  torch::nn::Linear linear(2, is_last ? 5 : 3);
  const at::Tensor before = linear->weight.detach().clone();
  refused_alike([&] { ronde::broadcast_object(linear); },
                who +
                    " has \"parameter weight: f32 [5, 2] on cpu\" where rank 0 has "
                    "\"parameter weight: f32 [3, 2] on cpu\"");
  CHECK(torch::equal(linear->weight, before));
  torch::nn::Linear sometimes(nullptr);
  if (!is_last) sometimes = torch::nn::Linear(2, 3);
  refused_alike([&] { ronde::broadcast_object(sometimes); }, who + ": the module holder is empty");
  std::shared_ptr<torch::nn::Module> one = torch::nn::Tanh().ptr();
  if (is_last) one = torch::nn::ReLU().ptr();
  refused_alike([&] { ronde::broadcast_object(one); }, "ReLUImpl");
  check_alive();
}

TEST_CASE("an object that one rank cannot write or read changes on none", "[n2][n4]") {
  const int last = ronde::size() - 1;
  Note note{ronde::rank() == last ? "unwritable" : "fine", at::ones({1})};
  refused_by_all(note, "rank " + std::to_string(last) + ": this note cannot be written", last);
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"unreadable", "this note cannot be read"},
      {"unreadable without a text", "unknown error"},
      {"unreadable by a number", "an exception that does not derive from std::exception"}};
  for (const auto& [text, told] : rows) {
    note.text = ronde::rank() == 0 ? text : "mine";
    refused_alike([&] { ronde::broadcast_object(note); }, "\n  rank 1: " + told);
    CHECK(note.text == (ronde::rank() == 0 ? text : "mine"));
    const std::string loaded = "rank 1: the object of rank 0 cannot be loaded: " + told;
    refused_alike([&] { ronde::allgather_object(note); }, loaded);
    refused_alike([&] { ronde::gather_object(note, {.root = 1}); }, loaded);
  }
  check_alive();
}

// Fails to load on rank 1, after load() has written the parameters in place or replaced them.
struct FragileImpl : torch::nn::Module {
  FragileImpl(double value, bool writes_in_place) : in_place(writes_in_place) {
    weight = register_parameter("weight", at::full({2, 2}, value));
    repeated = register_buffer("repeated", at::full({1, 2}, value).expand({3, 2}));
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (in_place) {
      const at::NoGradGuard no_grad;
      at::Tensor saved;
      archive.read("weight", saved);
      weight.copy_(saved);
    } else {
      Module::load(archive);
    }
    if (ronde::rank() == 1) throw std::runtime_error("rank 1 does not like it");
  }
  bool in_place;
  at::Tensor weight;
  at::Tensor repeated;  ///< its memory holds one row
};
TORCH_MODULE(Fragile);

TEST_CASE("a module whose load fails on one rank has its values back on all", "[n2][n4]") {
  const bool in_place = GENERATE(false, true);
  CAPTURE(in_place);
  const double own = 5.0 + ronde::rank();
  Fragile module(own, in_place);
  const void* memory = module->weight.const_data_ptr();
  refused_alike([&] { ronde::broadcast_object(module); }, "rank 1: rank 1 does not like it");
  CHECK(torch::equal(module->weight, at::full({2, 2}, own)));
  CHECK(module->weight.const_data_ptr() == memory);
  CHECK((module->repeated == own).all().item<bool>());
  check_alive();
}

TEST_CASE("bytes that do not fit are refused by load_bytes, which changes nothing", "[n1]") {
  torch::nn::Linear linear(2, 3);
  const at::Tensor before = linear->weight.detach().clone();
  const auto check = [&](auto& object, const std::string& bytes, const std::string& part) {
    check_refused([&] { ronde::load_bytes(object, bytes); }, {"ronde::load_bytes: ", part});
  };
  check(linear, ronde::save_bytes(torch::nn::Linear(2, 5)),
        "parameter weight is f32 [3, 2] on cpu here and f32 [5, 2] on cpu in what was");
  check(linear, ronde::save_bytes(at::ones({2})),
        "rank 0: ronde::load_bytes: the bytes are those of \"at::Tensor\", the object is "
        "\"torch::nn::LinearImpl\"");
  check(linear, "garbage", "the 7 bytes were not written by ronde::save_bytes");
  check(linear, "", "the 0 bytes were not written");
  CHECK(torch::equal(linear->weight, before));
  at::Tensor tensor = before;
  check(tensor, "garbage", "not written by ronde::save_bytes");
  check(tensor, ronde::save_bytes(Tensors{before}),
        "the object is \"at::Tensor\". Load them into an object of the type");
  CHECK(tensor.is_same(before));
  torch::optim::Adam adam(linear->parameters(), 0.5);
  check(adam, ronde::save_bytes(linear), "torch::optim::Adam");
  const torch::optim::AdamW adamw(linear->parameters(), 0.25);
  check(adam, ronde::save_bytes(adamw), "those of \"torch::optim::AdamW\"");
  CHECK(adam.param_groups()[0].options().get_lr() == 0.5);
  torch::nn::Linear none(nullptr);
  check(none, ronde::save_bytes(linear), "the module holder is empty");
  check_refused([&] { ronde::save_bytes(none); }, {"the module holder is empty"});
}

// Checks that no part of the bytes of `object`, and none with a changed bit, loads.
template <typename T>
void check_damaged(T& object) {
  const std::string bytes = ronde::save_bytes(object);
  const auto check_damage_seen = [&](const std::string& damaged) {
    check_refused([&] { ronde::load_bytes(object, damaged); }, {"ronde::save_bytes"});
    CHECK(ronde::save_bytes(object) == bytes);
  };
  const std::size_t step = bytes.size() / 16 + 1;
  for (std::size_t at = 0; at < bytes.size(); at += at < 64 ? 5 : step) {
    CAPTURE(at, bytes.size());
    check_damage_seen(bytes.substr(0, at));
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    check_damage_seen(flipped);
  }
  check_damage_seen(bytes.substr(0, bytes.size() - 1));
  check_damage_seen(bytes + '\0');
  ronde::load_bytes(object, bytes);
  CHECK(ronde::save_bytes(object) == bytes);
}

TEST_CASE("bytes that are lost or changed are refused by load_bytes", "[n1]") {
  std::string text = "plain bytes";
  check_damaged(text);
  at::Tensor tensor = normal({5, 4}, 1);
  check_damaged(tensor);
  Tensors list = {tensor, at::Tensor(), at::ones({2}, at::kLong)};
  check_damaged(list);
  c10::IValue value(std::vector<double>{1, 2});
  check_damaged(value);
  torch::nn::Linear linear(2, 3);
  check_damaged(linear);
  torch::optim::SGD sgd(linear->parameters(), torch::optim::SGDOptions(0.5).momentum(0.5));
  check_damaged(sgd);
}

TEST_CASE("a rank without memory for an object makes all refuse it", "[n2][own]") {
  use_ronde();
  check_alive();
  const std::size_t size = std::size_t{GENERATE(32U, 256U)} << 20;
  std::string object(ronde::rank() == 0 ? size : 1, 'x');
  {
    std::optional<ronde::test::MemoryLimit> little;
    if (ronde::rank() == 1) little.emplace(size / 4);
    check_refused([&] { ronde::broadcast_object(object); },
                  {"rank 1: no memory for " + std::to_string(size) + " bytes"});
    check_refused([&] { ronde::allgather_object(object); }, {"rank 1: "});
    check_refused([&] { ronde::gather_object(object, {.root = 1}); }, {"rank 1: "});
  }
  CHECK(object.size() == (ronde::rank() == 0 ? size : 1));
  check_alive();
}

}  // namespace
}  // namespace ronde_test::objects_test
