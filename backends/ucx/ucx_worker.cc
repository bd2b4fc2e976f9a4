// SPDX-License-Identifier: Apache-2.0
#include "backends/ucx/ucx_worker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "backends/vendor/rdma.h"
#include "ronde/config.h"
#include "ronde/error.h"

namespace ronde::ucx {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

/// How often UCX checks whether the peer of a silent connection is alive; its default is 20 s.
constexpr Setting kKeepalive = {"KEEPALIVE_INTERVAL", "2s"};
/// Without RDMA, the messages that leave at once: Note [Messages of MPI between hosts]. They are
/// copied before, as UCX 1.13 ends the process (`Assertion comp->count > 0 failed`) if a peer dies
/// while a message leaves from the user's memory.
constexpr Setting kWithoutRdma[] = {{"RNDV_THRESH", "1m"}, {"ZCOPY_THRESH", "inf"}};

// The number of socket events that UCX handles in one batch. While it handles one, it may find
// another socket closed by the death of a peer; if the batch also has an event of that socket, an
// assertion of UCX (seen with 1.13) ends this process. UCX 1.13 reads this setting from the
// environment only.
constexpr const char* kEventsVariable = "UCX_TCP_MAX_POLL";

/// Whether a value of UCX_TLS allows TCP. It lists transports, or after a "^" excluded ones.
bool allows_tcp(const std::string& transports) {
  return transports == "all" ||
         transports.starts_with('^') != (transports.find("tcp") != std::string::npos);
}

}  // namespace

LoadedUcx load_ucx(const vendor::SymbolLookup& lookup) {
  LoadedUcx ucx;
  // Checks the version first, as it explains more than the functions that an old library lacks.
  struct : vendor::ApiTable {
    UcpApi::Call<decltype(ucp_get_version)> get_version{*this, "ucp_get_version"};
  } version_api;
  if (const std::string missing = version_api.load(lookup, kLibrary); !missing.empty()) {
    ucx.problem = "UCX cannot be loaded: " + missing +
                  ". Install it (Debian: libucx0), or have LD_LIBRARY_PATH name its folder";
    return ucx;
  }
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  version_api.get_version(&major, &minor, &release);
  ucx.version = std::to_string(major) + "." + std::to_string(minor) + "." +  //
                std::to_string(release);
  if (major != 1 || minor < kOldestMinor) {
    ucx.problem = std::string(kLibrary) + " is UCX " + ucx.version + ", Ronde needs 1." +
                  std::to_string(kOldestMinor) + " or a newer version 1. Install one";
    return ucx;
  }
  const auto api = std::make_shared<UcpApi>();
  const std::string missing = api->load(lookup, kLibrary);
  if (missing.empty()) {
    ucx.api = api;
  } else {
    ucx.problem = "UCX " + ucx.version + " cannot be used: " + missing;
  }
  return ucx;
}

UcxWorker::UcxWorker(std::shared_ptr<const UcpApi> api, int rank, int ranks,
                     const std::string& ignored_transports)
    : api_(std::move(api)), rank_(rank), peers_(static_cast<std::size_t>(ranks)) {
  for (Peer& peer : peers_) peer.owner = this;
  make_context(ignored_transports);
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  parameters.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;  // receives of a group that has failed
  ucp_worker_h worker = nullptr;
  check(api_->worker_create(context_.get(), &parameters, &worker), "ucp_worker_create");
  worker_ = {worker, [used = api_](ucp_worker_h handle) { used->worker_destroy(handle); }};
}

void UcxWorker::make_context(const std::string& ignored_transports) {
  ucp_config_t* read = nullptr;
  check(api_->config_read(nullptr, nullptr, &read), "ucp_config_read");
  const std::unique_ptr<ucp_config_t, std::function<void(ucp_config_t*)>> config(
      read, [this](ucp_config_t* handle) { api_->config_release(handle); });
  const EnvironmentLookup variables = process_environment();
  const auto set = [&](const Setting& setting) {
    if (variables(std::string("UCX_") + setting.name)) return;
    check(api_->config_modify(config.get(), setting.name, setting.value), "ucp_config_modify");
  };
  set(kKeepalive);
  if (!vendor::has_rdma_devices()) std::ranges::for_each(kWithoutRdma, set);
  std::string transports = variables("UCX_TLS").value_or("all");
  if (transports == ignored_transports) {
    transports = "all";
    check(api_->config_modify(config.get(), "TLS", "all"), "ucp_config_modify");
  }
  constexpr int kKeepWhatIsSet = 0;
  // Set only if TCP is allowed: UCX warns of a variable that it does not use.
  if (allows_tcp(transports)) setenv(kEventsVariable, "1", kKeepWhatIsSet);
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  parameters.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  parameters.estimated_num_eps = peers_.size();
  ucp_context_h context = nullptr;
  check(api_->init(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config.get(), &context), "ucp_init");
  context_ = {context, [api = api_](ucp_context_h handle) { api->cleanup(handle); }};
}

void UcxWorker::check(ucs_status_t status, const char* symbol) const {
  if (status == UCS_OK) return;
  throw Error("rank " + std::to_string(rank_) + ": UCX failed: " + symbol + ": " +
              api_->status_string(status) +
              ". Check what UCX_TLS and UCX_NET_DEVICES allow (ucx_info -d lists the devices); "
              "UCX_LOG_LEVEL=info logs more");
}

std::string UcxWorker::address() const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY;
  check(api_->worker_query(worker_.get(), &attributes), "ucp_worker_query");
  std::string text(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  api_->release_address(worker_.get(), attributes.address);
  return text;
}

void UcxWorker::set_addresses(std::vector<std::string> addresses) {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    peers_[rank].address = std::move(addresses.at(rank));
  }
}

ucp_ep_h UcxWorker::connection(int peer) {
  Peer& other = peers_.at(static_cast<std::size_t>(peer));
  if (other.status != UCS_OK) throw_lost(peer, other.status);
  if (other.connection != nullptr) return other.connection;
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(other.address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler = {on_loss, &other};
  const ucs_status_t status = api_->endpoint_create(worker_.get(), &parameters, &other.connection);
  if (status != UCS_OK) {
    other.connection = nullptr;
    on_loss(&other, nullptr, status);
    throw_lost(peer, status);
  }
  ++counters.connections;
  return other.connection;
}

void UcxWorker::on_loss(void* peer, ucp_ep_h, ucs_status_t status) {
  Peer& lost = *static_cast<Peer*>(peer);
  lost.status = status;
  UcxWorker& worker = *lost.owner;
  if (worker.lost_ < 0) worker.lost_ = static_cast<int>(&lost - worker.peers_.data());
}

void UcxWorker::check_peers() const {
  if (lost_ >= 0) throw_lost(lost_, peers_[static_cast<std::size_t>(lost_)].status);
}

void UcxWorker::throw_lost(int peer, ucs_status_t status) const {
  throw GroupError(peer, "rank " + std::to_string(rank_) + " lost its UCX connection to rank " +
                             std::to_string(peer) + ": " + api_->status_string(status) +
                             ". That process has ended, or the network in between is cut or is "
                             "not the one that UCX should use: look at its output, and at "
                             "UCX_NET_DEVICES and UCX_TLS on both hosts");
}

bool UcxWorker::has_rdma() const {
  char* text = nullptr;
  std::size_t length = 0;
  std::FILE* const file = open_memstream(&text, &length);
  if (file == nullptr) return false;
  api_->print_info(context_.get(), file);
  std::fclose(file);
  const std::string resources(text, length);
  std::free(text);
  // Lines such as "resource 3 : md 2 dev 1 flags -- rc_mlx5/mlx5_0:1".
  return resources.find("- rc_") != std::string::npos ||
         resources.find("- dc_") != std::string::npos;
}

bool UcxWorker::takes_device_memory() const {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return api_->context_query(context_.get(), &attributes) == UCS_OK &&
         (attributes.memory_types >> UCS_MEMORY_TYPE_CUDA & 1) != 0;
}

bool UcxWorker::close(std::chrono::milliseconds timeout) {
  if (worker_ && !close_connections(timeout)) return false;
  // Without its connections no message of a peer reaches the memory.
  worker_.reset();
  std::vector<std::shared_ptr<void>> freed;  // after the lock, as its end may lead to keep()
  const std::lock_guard lock(kept_mutex_);
  freed.swap(kept_);
  return true;
}

bool UcxWorker::close_connections(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (Peer& peer : peers_) {
    if (peer.connection == nullptr) continue;
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    // Nothing is left to be sent, and over TCP a flush would wait until the peers poll.
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const auto request = api_->endpoint_close(std::exchange(peer.connection, nullptr), &parameters);
    if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
  }
  while (!closing_.empty()) {
    if (api_->request_status(closing_.back()) != UCS_INPROGRESS) {
      api_->request_free(closing_.back());
      closing_.pop_back();
    } else if (std::chrono::steady_clock::now() > deadline) {
      return false;
    } else {
      progress();
    }
  }
  while (progress() && std::chrono::steady_clock::now() < deadline) {  // UCX warns of what is left
  }
  return true;
}

ucp_mem_h UcxWorker::map_memory(void* begin, std::size_t bytes) {
  ucp_mem_map_params_t parameters{};
  parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  parameters.address = begin;
  parameters.length = bytes;
  ucp_mem_h memory = nullptr;
  const ucs_status_t status = api_->mem_map(context_.get(), &parameters, &memory);
  return status == UCS_OK ? memory : nullptr;
}

void UcxWorker::unmap_memory(ucp_mem_h memory) {
  static_cast<void>(api_->mem_unmap(context_.get(), memory));
}

}  // namespace ronde::ucx
