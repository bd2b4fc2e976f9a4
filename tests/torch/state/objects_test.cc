// SPDX-License-Identifier: Apache-2.0
// Objects of every kind to all ranks, from all ranks, and to one.
#include "tests/torch/state/objects.h"
#include "tests/torch/layouts.h"

namespace ronde_test::objects_test {

namespace {

// `of(rank)` is that rank's object.
template <typename T>
void check_moves(const std::string& kind, const std::function<T(int)>& of) {
  CAPTURE(kind);
  const auto size = static_cast<std::size_t>(ronde::size());
  // Twice, as a repeated name is agreed on in another way.
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

}  // namespace

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

TEST_CASE("NaNs keep their bits", "[n2]") {
  const at::Tensor bits = at::full({3}, 0x7fc12345, at::kInt) + ronde::rank();
  at::Tensor mine = bits.view(at::kFloat);
  ronde::broadcast_object(mine, {.root = 1});
  CHECK(torch::equal(mine.view(at::kInt), at::full({3}, 0x7fc12346, at::kInt)));
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
    // The same module as itself and by a pointer.
    Net other(3, 10.0 + ronde::rank());
    ronde::broadcast_object(*other, {.name = "itself", .root = root});
    CHECK(same(everything(*other), everything(*Net(3, 10.0 + root))));
    const std::shared_ptr<NetImpl> pointer = Net(3, 20.0 + ronde::rank()).ptr();
    ronde::broadcast_object(pointer, {.name = "pointer", .root = root});
    CHECK(same(everything(*pointer), everything(*Net(3, 20.0 + root))));
    torch::optim::Adam adam(net->parameters(), 0.25 + ronde::rank());
    ronde::broadcast_object(adam, {.root = root});
    CHECK(adam.param_groups()[0].options().get_lr() == 0.25 + root);
    // It has no default.
    ronde::DistributedSampler sampler(100, {.seed = 3});
    if (ronde::rank() == root) sampler.set_epoch(4, 8);
    ronde::broadcast_object(sampler, {.root = root});
    CHECK(sampler.epoch() == 4);
    CHECK(sampler.position() == 8);
  }
}

TEST_CASE("modules and optimizers are gathered as bytes, and loaded into one's own") {
  Net mine(3, 1.0 + ronde::rank());
  torch::optim::SGD sgd(mine->parameters(), torch::optim::SGDOptions(0.5 + ronde::rank()));
  const std::vector<std::string> modules = ronde::allgather_object(ronde::save_bytes(mine));
  const std::vector<std::string> optimizers =
      ronde::gather_object(ronde::save_bytes(sgd), {.root = ronde::size() - 1});
  for (int rank = 0; rank < ronde::size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    Net net(3, -1);
    ronde::load_bytes(net, modules[r]);
    CHECK(same(everything(*net), everything(*Net(3, 1.0 + rank))));
    if (optimizers.empty()) continue;
    torch::optim::SGD loaded(net->parameters(), torch::optim::SGDOptions(9));
    ronde::load_bytes(loaded, optimizers[r]);
    CHECK(loaded.param_groups()[0].options().get_lr() == 0.5 + rank);
  }
  static_assert(ronde::detail::Object<Net> && !ronde::detail::ValueObject<Net>);
  static_assert(!ronde::detail::ValueObject<torch::optim::Adam>);
  static_assert(!ronde::detail::ValueObject<std::shared_ptr<NetImpl>>);
  static_assert(!ronde::detail::Object<int> && !ronde::detail::Object<std::vector<double>>);
  static_assert(ronde::detail::Object<ronde::DistributedSampler>);
}

TEST_CASE("objects travel within process sets, whose numbers roots are", "[n2][n4]") {
  std::vector<int> ranks;
  for (int rank = ronde::size() - 1; rank > 0; --rank) ranks.push_back(rank);
  const ronde::ProcessSet set = ronde::add_process_set(ranks);
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

}  // namespace ronde_test::objects_test
