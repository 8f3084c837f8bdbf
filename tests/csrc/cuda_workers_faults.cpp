// What goes wrong on one side of the path between a model worker and an attention worker, in the middle of an
// iteration: each worker's stream comes to its end, and each hears of one failure. Over rings in shared
// memory and over softnics; the devices are the emulation. Exits with 1 on a mismatch.

#include <cstdio>
#include <string>
#include <type_traits>

#include "cuda_paths.hpp"
#include "fhbn/ordered.hpp"

namespace {

using namespace cuda_paths_test;

// A worker while something goes wrong.
template <typename Worker>
struct Side {
  void put() const {
    if constexpr (std::is_same_v<Worker, Model>) {
      put_model(worker, ends, stream);
    } else {
      put_attention(worker, ends, stream);
    }
  }
  void expect(lamina_cuda_status wanted, const std::string& when) const {
    const lamina_cuda_status match = ends.check();
    ::expect(match == wanted,
             when + ": the status is " + std::to_string(match) + ": " + lamina_cuda_message());
  }
  // Its stream comes to an end, and there is one reason for that, whatever is put there later.
  void expect_failure(lamina_cuda_status wanted, const std::string& when) const {
    for (int again = 0; again < 2; ++again) {
      put();
      expect(wanted, when);
    }
  }

  Ends ends;
  Worker worker{};
  Stream stream{};
};
using ModelSide = Side<Model>;
using AttentionSide = Side<Attention>;

enum class Departed { kNone, kModel, kAttends };  // whose process has ended, when what it does is done

void run(Path& path, const std::function<void(const ModelSide&)>& model,
         const std::function<void(const AttentionSide&)>& attends, Departed departed = Departed::kNone) {
  std::thread there = on_device(kModel, [&] { model({path.of_model()}); });
  std::thread here = on_device(kAttends, [&] { attends({path.of_attention()}); });
  if (departed == Departed::kAttends) {
    here.join();
    path.of_model().abort();  // as who watches that process does
  }
  there.join();
  if (departed == Departed::kModel) path.of_attention().abort();
  if (departed != Departed::kAttends) here.join();
}

void check_closed(bool over_nics) {
  {
    Path path(over_nics);
    run(
        path, [](auto& side) { side.expect_failure(LAMINA_CUDA_CHANNEL_CLOSED, "attention closes"); },
        [](auto& side) {
          side.ends.in.await(side.stream);  // and has not yet fetched it
          side.expect(LAMINA_CUDA_OK, "attention closes");
          side.ends.close();
        });
  }
  Path path(over_nics);
  run(
      path,
      [](auto& side) {
        side.ends.out.send({side.worker.x[0].buffer()}, side.stream);
        side.ends.close();
      },
      [](auto& side) { side.expect_failure(LAMINA_CUDA_CHANNEL_CLOSED, "the model closes"); });
}

void check_killed(bool over_nics) {
  {
    Path path(over_nics);
    run(
        path, [](auto& side) { side.expect_failure(LAMINA_CUDA_CHANNEL_LOST, "attention is killed"); },
        [](auto& side) { side.ends.in.await(side.stream); }, Departed::kAttends);
  }
  Path path(over_nics);
  run(
      path, [](auto& side) { side.ends.out.send({side.worker.x[0].buffer()}, side.stream); },
      [](auto& side) { side.expect_failure(LAMINA_CUDA_CHANNEL_LOST, "the model is killed"); },
      Departed::kModel);
}

// Alive, and does nothing.
void check_stopped(bool over_nics) {
  constexpr std::int64_t kShort = 2'000'000;
  {
    Path path(over_nics, kShort);
    run(
        path, [](auto& side) { side.expect_failure(LAMINA_CUDA_CHANNEL_LATE, "attention stops"); },
        [](auto&) {});
  }
  Path path(over_nics, kShort);
  run(
      path, [](auto&) {},
      [](auto& side) { side.expect_failure(LAMINA_CUDA_CHANNEL_LATE, "the model stops"); });
}

// A number that no peer of ours writes. Who finds it closes, and the other one hears of that. What comes from
// it before was made of nothing: its other end works, and sends what is behind the failure on the stream.
void check_corrupted(bool over_nics) {
  const auto lie = [](const Way& way) {
    lamina::fhbn::store_release(way.ring->ring().published.seqno, cuda_nic_test::kNearWrap + 1000);
  };
  const auto finds = [](const auto& side) {
    side.expect_failure(LAMINA_CUDA_CHANNEL_CORRUPTED, "the peer lies");
    side.ends.close();
  };
  {
    Path path(over_nics);
    run(
        path,
        [&](auto& side) {
          side.ends.out.send({side.worker.x[0].buffer()}, side.stream);
          side.ends.out.drain(side.stream);
          lie(path.there);
          while (side.ends.check() == LAMINA_CUDA_OK) {
            side.ends.in.receive({side.worker.x[1].buffer()}, side.stream);
          }
          side.expect(LAMINA_CUDA_CHANNEL_CLOSED, "the model lies");
        },
        finds);
  }
  Path path(over_nics);
  run(path, finds, [&](auto& side) {
    const Attention& worker = side.worker;
    side.ends.in.receive({worker.q.buffer()}, side.stream);
    lie(path.back);
    while (side.ends.check() == LAMINA_CUDA_OK) {
      side.ends.in.receive({worker.k.buffer(), worker.v.buffer()}, side.stream);
      side.ends.in.receive({worker.q.buffer()}, side.stream);
    }
    side.expect(LAMINA_CUDA_CHANNEL_CLOSED, "attention lies");
  });
}

// The peer's NIC answers no more: one side learns it from its own NIC, the other from the process that
// watches.
void check_unplugged() {
  const auto unplug = [](const Way& way) { way.mirror->nic.queue(way.there->send.qpn)->unplug(); };
  const auto sends = [](const auto& side, const Buffer& part) {
    side.ends.out.send({part}, side.stream);
    side.ends.out.drain(side.stream);
    side.expect(LAMINA_CUDA_NIC_FAILED, "a NIC fails");
  };
  const auto fails = [](const auto& side) {
    side.expect_failure(LAMINA_CUDA_CHANNEL_LOST, "the peer's NIC fails");
  };
  {
    Path path(true);
    unplug(path.there);
    run(path, [&](auto& side) { sends(side, side.worker.x[0].buffer()); }, fails, Departed::kModel);
  }
  Path path(true);
  unplug(path.back);
  run(path, fails, [&](auto& side) { sends(side, side.worker.out.buffer()); }, Departed::kAttends);
}

}  // namespace

int main() {
  for (const bool over_nics : {false, true}) {
    check_closed(over_nics);
    check_killed(over_nics);
    check_stopped(over_nics);
    check_corrupted(over_nics);
  }
  check_unplugged();
  expect(fake_cuda::registered.empty(), "memory stays pinned");
  std::puts("cuda_workers_faults: two workers fail as they should");
}
