//! Functions of the driver and of NVML that torch wants to find and an allocator does not need.

use std::convert::identity;

use crate::calls::unsupported;

unsupported! {
    identity;
    cuFuncGetAttribute
    cuFuncSetAttribute
    cuFuncSetCacheConfig
    cuLaunchCooperativeKernel
    cuLaunchKernel
    cuLinkAddData_v2
    cuLinkComplete
    cuLinkCreate_v2
    cuMemExportToShareableHandle
    cuMemGetAllocationPropertiesFromHandle
    cuMemImportFromShareableHandle
    cuMemRetainAllocationHandle
    cuMemsetD32Async
    cuModuleGetFunction
    cuModuleLoad
    cuModuleLoadData
    cuModuleLoadDataEx
    cuModuleUnload
    cuOccupancyMaxActiveBlocksPerMultiprocessor
    cuPointerGetAttribute
    cuStreamWriteValue32
    cuTensorMapEncodeTiled
    nvmlDeviceGetNvLinkRemoteDeviceType
    nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlSystemGetCudaDriverVersion_v2
}
