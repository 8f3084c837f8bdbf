#include "fhbn/rdma/ibverbs.hpp"

#include <dlfcn.h>

#include <string>

#include "fhbn/errors.hpp"

namespace lamina::fhbn::rdma {

namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw ChannelError(std::string(kLibrary) + " has no " + name + ": install rdma-core 32 or newer");
  }
}

// Before Linux 5.12 a process that forks and then writes to a queue would write to a copy, which the NIC does
// not read: then the library has to keep its queues from forks. It cannot if somebody has used it already
// without that, who has chosen for us.
void keep_from_forks(void* library) {
  int (*fork_init)() = nullptr;
  find(library, "ibv_fork_init", fork_init);
  fork_init();
}

Ibverbs load() {
  // Not unloaded: drivers of devices have threads and tables of their own in there.
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    throw ChannelError(std::string(kLibrary) + " cannot be loaded: install rdma-core's libibverbs1 (" +
                       ::dlerror() + ")");
  }
  Ibverbs found;
  find(library, "ibv_get_device_list", found.get_device_list);
  find(library, "ibv_free_device_list", found.free_device_list);
  find(library, "ibv_get_device_name", found.get_device_name);
  find(library, "ibv_open_device", found.open_device);
  find(library, "ibv_close_device", found.close_device);
  find(library, "ibv_query_port", found.query_port);
  find(library, "_ibv_query_gid_table", found.query_gid_table);
  find(library, "ibv_alloc_pd", found.alloc_pd);
  find(library, "ibv_dealloc_pd", found.dealloc_pd);
  find(library, "ibv_reg_mr", found.reg_mr);
  find(library, "ibv_dereg_mr", found.dereg_mr);
  find(library, "ibv_create_cq", found.create_cq);
  find(library, "ibv_destroy_cq", found.destroy_cq);
  find(library, "ibv_create_qp", found.create_qp);
  find(library, "ibv_modify_qp", found.modify_qp);
  find(library, "ibv_destroy_qp", found.destroy_qp);
  found.reg_dmabuf_mr =
      reinterpret_cast<decltype(found.reg_dmabuf_mr)>(::dlsym(library, "ibv_reg_dmabuf_mr"));
  keep_from_forks(library);
  return found;
}

}  // namespace

const Ibverbs& ibverbs() {
  static const Ibverbs loaded = load();  // tried again by the next call if it throws
  return loaded;
}

}  // namespace lamina::fhbn::rdma
