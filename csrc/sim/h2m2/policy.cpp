#include "sim/h2m2/policy.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include "sim/h2m2/footprint.hpp"
#include "sim/h2m2/search.hpp"
#include "sim/h2m2/times.hpp"

namespace lamina::h2m2 {

namespace {

// Sublayers distributed to the two sides one after the other, never so that what is still to come fits
// nowhere: weights come in small pieces, KV groups in large ones (Llama 2 has eight).
class Packing {
public:
  Packing(const Shape& shape, const Room& room)
      : hbm_(room.hbm_bytes),
        lpddr_(room.lpddr_bytes),
        pieces_{Pieces(room.unit.qkv, shape.heads), Pieces(room.unit.attention, shape.kv_heads),
                Pieces(room.unit.fc, shape.heads)} {}

  // In this order, each with the feasible number on the HBM side that costs least. `costs` gives for each
  // sublayer the number that it would be best() to have there, and a cost of() a number that rises to both
  // sides of that.
  template <typename Costs>
  std::optional<Mapping> place(const std::array<Sublayer, 3>& order, const Costs& costs) {
    std::array<int, 3> chosen{};
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::optional<int> n = choose(order, i, costs);
      if (!n) return std::nullopt;
      const auto s = static_cast<std::size_t>(order[i]);
      chosen[s] = *n;
      take(pieces_[s], *n);
    }
    return Mapping{chosen[0], chosen[1], chosen[2]};
  }

private:
  void take(const Pieces& pieces, int n) {
    hbm_ -= n * pieces.bytes();
    lpddr_ -= (pieces.count() - n) * pieces.bytes();
  }

  const Pieces& at(Sublayer sublayer) const { return pieces_[static_cast<std::size_t>(sublayer)]; }

  // Outwards from the best number, so that the first that is feasible is the cheapest.
  template <typename Costs>
  std::optional<int> choose(const std::array<Sublayer, 3>& order, std::size_t i, const Costs& costs) const {
    const Pieces& pieces = at(order[i]);
    const int most = pieces.most_in(hbm_);
    const int least = std::max(0, pieces.least_outside(lpddr_));
    if (least > most) return std::nullopt;
    const auto cost = costs(order[i]);
    int up = std::clamp(cost.best(), least, most);
    int down = up - 1;
    while (up <= most || down >= least) {
      const bool go_down = up > most || (down >= least && cost.of(down) <= cost.of(up));
      const int n = go_down ? down-- : up++;
      Packing rest = *this;
      rest.take(pieces, n);
      if (rest.fits(order, i + 1)) return n;
    }
    return std::nullopt;
  }

  // Whether the sublayers from this one on fit into what is left.
  bool fits(const std::array<Sublayer, 3>& order, std::size_t from) const {
    if (hbm_ < 0 || lpddr_ < 0) return false;
    if (from == order.size()) return true;
    const Pieces& pieces = at(order[from]);
    const int most = pieces.most_in(hbm_);
    for (int n = std::max(0, pieces.least_outside(lpddr_)); n <= most; ++n) {
      Packing rest = *this;
      rest.take(pieces, n);
      if (rest.fits(order, from + 1)) return true;
    }
    return false;
  }

  double hbm_, lpddr_;
  std::array<Pieces, 3> pieces_;
};

// Weights of qkv and fc are split in the same way.
template <typename Cost>
auto costs(const Cost& weights, const Cost& kv) {
  return [=](Sublayer sublayer) { return sublayer == Sublayer::kAttention ? kv : weights; };
}

// The paper's peak execution model: a head's operations at the units' peak rate, times what its arithmetic
// intensity costs. Operations are the same at both sides, so they are left out.
struct Balance {
  double hbm = 0;  // of a head at that side
  double lpddr = 0;
  int count = 0;

  double of(int n) const { return std::max(n * hbm, (count - n) * lpddr); }

  int best() const {
    const int n = static_cast<int>(count * lpddr / (hbm + lpddr));
    return n < count && of(n + 1) < of(n) ? n + 1 : n;
  }
};

// Algorithm 1: attention, qkv, fc, each balanced between the sides as well as there is room for.
std::optional<Mapping> greedy(const Times& times, const Moment& moment, const Room& room) {
  const Shape& shape = times.shape();
  const Board& board = times.board();
  const auto batch = static_cast<double>(moment.batch);
  // A weight is multiplied once for each request; the array stands still while it is loaded.
  const double waste = Chips::cycles_a_tile(board, batch) / batch;
  const double weight_intensity = batch / shape.element_bytes;
  const double kv_intensity = (board.reread_kv ? 1.0 : shape.group()) / shape.element_bytes;
  const auto weights = [&](const Chips& chips) {
    return std::max(waste / chips.mm_per_ns(), 1 / (chips.bytes_per_ns() * weight_intensity));
  };
  const auto kv = [&](const Chips& chips) {
    return std::max(1 / chips.mv_per_ns(), 1 / (chips.bytes_per_ns() * kv_intensity));
  };
  const Chips& hbm = times.hbm().chips();
  const Chips& lpddr = times.lpddr().chips();
  return Packing(shape, room)
      .place({Sublayer::kAttention, Sublayer::kQkv, Sublayer::kFc},
             costs(Balance{weights(hbm), weights(lpddr), shape.heads},
                   Balance{kv(hbm), kv(lpddr), shape.kv_heads}));
}

// The best mapping there is, by exact search.
std::optional<Mapping> oracle(const Times& times, const Moment& moment, const Room& room) {
  return fastest(times, moment, room, all_mappings(times.shape()));
}

// As near to a number as whole heads come.
struct Nearest {
  int number;

  int best() const { return number; }
  int of(int n) const { return std::abs(n - number); }
};

// FlexGen's shares of weights and KV were settled once and stay, whatever the batch and its lengths. What HBM
// then has no room for is taken from KV first.
auto flexgen(const Shape& shape, Shares shares) {
  const auto wanted = costs(Nearest{static_cast<int>(std::lround(shares.weights * shape.heads))},
                            Nearest{static_cast<int>(std::lround(shares.kv * shape.kv_heads))});
  return [=](const Times&, const Moment&, const Room& room) {
    return Packing(shape, room).place({Sublayer::kQkv, Sublayer::kFc, Sublayer::kAttention}, wanted);
  };
}

// Whole sublayers of whole layers, one side at work at a time: the best way to fill HBM with such pieces.
// Layers are identical, so their numbers suffice.
std::optional<Mapping> naive(const Times& times, const Moment& moment, const Room& room) {
  const Shape& shape = times.shape();
  const int layers = shape.layers;
  const Pieces qkv(room.unit.qkv * shape.heads / layers, layers);
  const Pieces attention(room.unit.attention * shape.kv_heads / layers, layers);
  const Pieces fc(room.unit.fc * shape.heads / layers, layers);
  const double without = times.of({0, 0, 0, true}, moment, false).iteration_ns(layers);
  // Time that a layer of these saves in HBM, once for each layer.
  const auto gain = [&](const Mapping& in_hbm) {
    return (without - times.of(in_hbm, moment, false).iteration_ns(layers)) / layers;
  };
  const double qkv_gain = gain({layers, 0, 0, true});
  const double attention_gain = gain({0, layers, 0, true});
  const double fc_gain = gain({0, 0, layers, true});
  double best = -std::numeric_limits<double>::infinity();
  std::optional<Mapping> match;
  for (int a = 0; a <= layers; ++a) {
    const double hbm = room.hbm_bytes - a * attention.bytes();
    const double lpddr = room.lpddr_bytes - (layers - a) * attention.bytes();
    Window window(fc, hbm, lpddr - layers * qkv.bytes());
    for (int q = 0; q <= layers; ++q) {
      window.follow(hbm - q * qkv.bytes(), lpddr - (layers - q) * qkv.bytes());
      if (window.least() > window.most()) continue;
      const int f = fc_gain > 0 ? window.most() : window.least();
      const double gained = a * attention_gain + q * qkv_gain + f * fc_gain;
      if (gained <= best) continue;
      best = gained;
      match = Mapping{q, a, f, true};
    }
  }
  return match;
}

// As much of one sublayer in HBM as fits there, and of the others the best by exact search.
auto major(Sublayer most) {
  return [=](const Times& times, const Moment& moment, const Room& room) -> std::optional<Mapping> {
    const Shape& shape = times.shape();
    const Pieces pieces = most == Sublayer::kAttention
                              ? Pieces(room.unit.attention, shape.kv_heads)
                              : Pieces(most == Sublayer::kQkv ? room.unit.qkv : room.unit.fc, shape.heads);
    // With less of it only where the others would fit nowhere.
    for (int n = pieces.most_in(room.hbm_bytes); n >= 0; --n) {
      Ranges ranges = all_mappings(shape);
      (most == Sublayer::kQkv ? ranges.qkv : most == Sublayer::kFc ? ranges.fc : ranges.attention) = {n, n};
      if (const auto match = fastest(times, moment, room, ranges)) return match;
    }
    return std::nullopt;
  };
}

// Heads or layers on two sides, as `choose` says, which decides as if addresses were translated for nothing.
// It gives nothing only if there is no mapping that fits the room.
template <typename Choose>
std::unique_ptr<Policy> on_two_sides(const Board& board, const Shape& shape, bool translated,
                                     const Choose& choose) {
  return std::make_unique<Policy>(
      board.hbm.capacity_bytes + board.lpddr.capacity_bytes, true,
      [=, times = Times(board, shape)](const Moment& moment, const Room& room) -> std::optional<Plan> {
        const std::optional<Mapping> mapping = choose(times, moment, room);
        if (!mapping) return std::nullopt;
        return times.of(*mapping, moment, translated);
      });
}

// All of a board's chips at one memory. `finish` adds to a plan what else an iteration of so many bytes
// takes.
template <typename Finish>
std::unique_ptr<Policy> at_one_memory(const Board& board, const Shape& shape, const Side& memory, bool is_hbm,
                                      double capacity_bytes, const Finish& finish) {
  const Sublayers side(board, memory, board.hbm.chips + board.lpddr.chips, shape);
  return std::make_unique<Policy>(capacity_bytes, false,
                                  [=](const Moment& moment, const Room& room) -> std::optional<Plan> {
                                    const double bytes = total_bytes(shape, room.unit);
                                    if (bytes > capacity_bytes) return std::nullopt;
                                    Plan plan = alone(board, side, is_hbm, moment);
                                    finish(plan, bytes);
                                    return plan;
                                  });
}

// The baseline: no HBM, and as many chips as the board has, all at the one LPDDR memory.
std::unique_ptr<Policy> lpddr_only(const Board& board, const Shape& shape) {
  return at_one_memory(board, shape, board.lpddr, false, board.lpddr.capacity_bytes, [](Plan&, double) {});
}

// All chips at HBM, LPDDR behind it: what HBM has no room for comes over the link in every iteration. How
// much of the shorter of computing and moving hides behind the longer is a parameter of the board.
std::unique_ptr<Policy> hierarchical(const Board& board, const Shape& shape) {
  const double capacity = board.hbm.capacity_bytes + board.lpddr.capacity_bytes;
  return at_one_memory(board, shape, board.hbm, true, capacity, [=](Plan& plan, double bytes) {
    const double computing = plan.iteration_ns(shape.layers);
    const double lpddr = board.lpddr.bytes_per_ns * board.dram_efficiency;
    const double missing = std::max(0.0, bytes - board.hbm.capacity_bytes);
    const double moving = missing / std::min(board.link_bytes_per_ns, lpddr);
    plan.on_demand_ns = std::max(computing, moving) - computing +
                        (1 - board.hierarchical_overlap) * std::min(computing, moving);
    plan.lpddr_busy_ns = moving;
    plan.lpddr_dram_ns = missing / lpddr;
  });
}

// Several HBM devices and no LPDDR: their bandwidth together, no more chips than a board has, and
// communication between the devices four times a layer.
std::unique_ptr<Policy> multi_hbm(const Board& board, const Shape& shape) {
  constexpr int kBarriers = 4;  // of a layer
  Side all = board.hbm;
  all.capacity_bytes *= board.hbm_devices;
  all.bytes_per_ns *= board.hbm_devices;
  return at_one_memory(board, shape, all, true, all.capacity_bytes,
                       [=](Plan& plan, double) { plan.launch_ns += kBarriers * board.hbm_barrier_ns; });
}

}  // namespace

std::unique_ptr<Policy> make_policy(const std::string& name, const Board& board, const Shape& shape,
                                    bool translated, Shares shares) {
  const auto mapping = [&](const auto& choose) { return on_two_sides(board, shape, translated, choose); };
  if (name == "greedy") return mapping(&greedy);
  if (name == "oracle") return mapping(&oracle);
  if (name == "flexgen") return mapping(flexgen(shape, shares));
  if (name == "naive") return mapping(&naive);
  if (name == "q-major") return mapping(major(Sublayer::kQkv));
  if (name == "a-major") return mapping(major(Sublayer::kAttention));
  if (name == "f-major") return mapping(major(Sublayer::kFc));
  if (name == "lpddr") return lpddr_only(board, shape);
  if (name == "hierarchical") return hierarchical(board, shape);
  if (name == "8-hbm") return multi_hbm(board, shape);
  throw std::invalid_argument("unknown mapping policy: " + name);
}

}  // namespace lamina::h2m2
