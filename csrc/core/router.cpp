#include "core/router.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace lamina {

namespace {

// SGLang's and vLLM's routers, by default: at least this share of a prompt must have been there before, and
// the instance that had it may not be this many requests, and so many times as many, ahead of the least.
constexpr double kWorthMatching = 0.3;
constexpr std::int64_t kAhead = 64;
constexpr double kTimesAhead = 1.5;
constexpr std::size_t kBlocksRemembered = 1 << 20;

}  // namespace

Router::Router(Routing routing, std::vector<Instance> instances, bool global)
    : routing_(routing), instances_(std::move(instances)), global_(global) {
  if (instances_.empty()) throw std::invalid_argument("a router has at least one instance");
  for (const Instance& each : instances_) {
    if (each.kv_tokens < 1 || each.max_requests < 1)
      throw std::invalid_argument("an instance has room for at least one token and one request");
  }
  requests_.resize(instances_.size());
  kv_.resize(instances_.size());
  open_.resize(instances_.size(), true);
}

int Router::route(const Wanted& wanted) { return sent(choose(wanted), wanted); }

int Router::route_to(int instance, const Wanted& wanted) {
  if (instance < 0 || instance >= instances())
    throw std::out_of_range("the router chose instance " + std::to_string(instance) + " of " +
                            std::to_string(instances()));
  const auto i = static_cast<std::size_t>(instance);
  if (!open_[i]) return sent(least_requests(wanted), wanted);
  return takes(i, wanted) ? sent(instance, wanted) : kNone;
}

int Router::sent(int instance, const Wanted& wanted) {
  if (instance == kNone) return instance;
  const auto i = static_cast<std::size_t>(instance);
  ++requests_[i];
  kv_[i] += needs(i, wanted);
  if (routing_ == Routing::kPrefix) remember(instance, wanted);
  return instance;
}

void Router::left(int instance, const Wanted& wanted) {
  const auto i = static_cast<std::size_t>(instance);
  --requests_[i];
  kv_[i] -= needs(i, wanted);
}

void Router::open(int instance, bool open) {
  open_.at(static_cast<std::size_t>(instance)) = open;
  closed_ = std::ranges::count(open_, false);
}

// One that has nothing takes anything: what is too large for it as well is refused there, with a reason.
bool Router::takes(std::size_t instance, const Wanted& wanted) const {
  if (!open_[instance]) return false;
  if (!global_ || requests_[instance] == 0) return true;
  const Instance& its = instances_[instance];
  return requests_[instance] < its.max_requests && kv_[instance] + needs(instance, wanted) <= its.kv_tokens;
}

int Router::choose(const Wanted& wanted) {
  switch (routing_) {
    case Routing::kRoundRobin:
      return in_turn(wanted);
    case Routing::kLeastRequests:
      return least_requests(wanted);
    case Routing::kLeastKv:
      return least_kv(wanted);
    case Routing::kPrefix:
      return with_prefix(wanted);
    case Routing::kFit:
      return fitting(wanted);
  }
  return kNone;
}

int Router::in_turn(const Wanted& wanted) {
  for (std::size_t tried = 0; tried < instances_.size(); ++tried) {
    const std::size_t next = turn_;
    if (++turn_ == instances_.size()) turn_ = 0;
    if (takes(next, wanted)) return static_cast<int>(next);
  }
  return kNone;
}

// Of those that take it, the first than which none is less.
template <typename Less>
int Router::least(const Wanted& wanted, Less less) const {
  int best = kNone;
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    if (takes(i, wanted) && (best == kNone || less(i, static_cast<std::size_t>(best))))
      best = static_cast<int>(i);
  }
  return best;
}

int Router::least_requests(const Wanted& wanted) const {
  if (!global_ && closed_ == 0) {  // every instance accepts it: two plain passes, as there may be thousands
    std::int64_t fewest = requests_.front();
    for (const std::int64_t each : requests_) fewest = std::min(fewest, each);
    return static_cast<int>(std::ranges::find(requests_, fewest) - requests_.begin());
  }
  return least(wanted, [&](std::size_t a, std::size_t b) { return requests_[a] < requests_[b]; });
}

// By the share of its memory that what it has may need.
int Router::least_kv(const Wanted& wanted) const {
  const auto share = [&](std::size_t i) {
    return static_cast<double>(kv_[i] + needs(i, wanted)) / static_cast<double>(instances_[i].kv_tokens);
  };
  return least(wanted, [&](std::size_t a, std::size_t b) { return share(a) < share(b); });
}

int Router::with_prefix(const Wanted& wanted) const {
  const int idlest = least_requests(wanted);
  if (idlest == kNone) return idlest;
  for (std::size_t blocks = wanted.prefix.size(); blocks > 0; --blocks) {
    const int* const match = sent_to(wanted.prefix[blocks - 1]);
    if (match == nullptr) continue;
    const auto i = static_cast<std::size_t>(*match);
    const auto there = static_cast<double>(blocks) * static_cast<double>(wanted.prefix_block_tokens);
    const std::int64_t fewest = requests_[static_cast<std::size_t>(idlest)];
    const bool ahead = requests_[i] > fewest + kAhead &&
                       static_cast<double>(requests_[i]) > kTimesAhead * static_cast<double>(fewest);
    const bool worth = there >= kWorthMatching * static_cast<double>(wanted.prompt);
    return worth && !ahead && takes(i, wanted) ? *match : idlest;
  }
  return idlest;
}

// The smallest that has room for all that it may need; where none has, the one with the least share in use.
int Router::fitting(const Wanted& wanted) const {
  const auto fits = [&](std::size_t i) { return kv_[i] + needs(i, wanted) <= instances_[i].kv_tokens; };
  const int best = least(wanted, [&](std::size_t a, std::size_t b) {
    if (fits(a) != fits(b)) return fits(a);
    return instances_[a].kv_tokens != instances_[b].kv_tokens
               ? instances_[a].kv_tokens < instances_[b].kv_tokens
               : kv_[a] < kv_[b];
  });
  return best == kNone || fits(static_cast<std::size_t>(best)) ? best : least_kv(wanted);
}

const int* Router::sent_to(std::int64_t id) const {
  for (const auto* blocks : {&recent_, &old_}) {
    if (const auto match = blocks->find(id); match != blocks->end()) return &match->second;
  }
  return nullptr;
}

void Router::remember(int instance, const Wanted& wanted) {
  for (const std::int64_t id : wanted.prefix) recent_[id] = instance;
  if (recent_.size() < kBlocksRemembered) return;
  old_ = std::move(recent_);
  recent_.clear();
}

}  // namespace lamina
