"""The methods of Kaggle's API that the official client calls, by service and method, as JSON in and out."""

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.loopback_kaggle.datasets import BusyError, Dataset, Datasets
from tests.loopback_kaggle.faults import Dice
from tests.loopback_kaggle.kernels import Kernel, Kernels

Body = dict[str, Any]
_CUT = 500


class ApiError(Exception):
    """An answer with an HTTP status of an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Service:
    """Answers requests; `methods` has the name that a request's path ends with."""

    def __init__(self, kernels: Kernels, datasets: Datasets, dice: Dice, settings: Any) -> None:
        self._kernels, self._datasets, self._dice, self._settings = kernels, datasets, dice, settings
        self.methods: dict[str, Callable[[Body], Body]] = {
            "security.OAuthService/IntrospectToken": self._introspect,
            "kernels.KernelsApiService/SaveKernel": self._push,
            "kernels.KernelsApiService/GetKernel": self._get_kernel,
            "kernels.KernelsApiService/GetKernelSessionStatus": self._status,
            "kernels.KernelsApiService/ListKernelSessionOutput": self._outputs,
            "kernels.KernelsApiService/DeleteKernel": self._delete,
            "kernels.KernelsApiService/GetAcceleratorQuotaStatistics": self._quota,
            "datasets.DatasetApiService/GetDatasetStatus": self._dataset_status,
            "datasets.DatasetApiService/GetDataset": self._dataset,
            "datasets.DatasetApiService/ListDatasetFiles": self._dataset_files,
            "datasets.DatasetApiService/CreateDataset": self._create_dataset,
            "datasets.DatasetApiService/CreateDatasetVersion": self._create_version,
            "datasets.DatasetApiService/DeleteDataset": self._delete_dataset,
            "blobs.BlobApiService/StartBlobUpload": self._start_upload,
        }

    def _introspect(self, body: Body) -> Body:
        return {"active": True, "username": self._settings.user} if body.get("token") == self._settings.token else {}

    def _push(self, body: Body) -> Body:
        if (body.get("slug") or "").partition("/")[0] != self._settings.user:
            raise ApiError(403, "Permission 'kernels.update' was denied")
        try:
            return self._kernels.push(body)
        except ValueError as error:
            raise ApiError(400, str(error)) from None

    def _get_kernel(self, body: Body) -> Body:
        kernel = self._kernel(body)
        version = kernel.newest
        metadata = {
            "id": kernel.id,
            "ref": kernel.reference,
            "slug": kernel.reference.partition("/")[2],
            "author": self._settings.user,
            "currentVersionNumber": version.number,
            "isPrivate": version.body.get("isPrivate", False),
        }
        blob = {"source": version.body.get("text"), "language": "python", "kernelType": version.body.get("kernelType")}
        return {"metadata": metadata, "blob": {**blob, "slug": metadata["slug"]}}

    def _status(self, body: Body) -> Body:
        return self._kernels.status(self._kernel(body).reference)

    def _outputs(self, body: Body) -> Body:
        session = self._kernel(body).newest.session
        names = list(files_below(session.output)) if session.output and session.is_over else []
        if len(names) > _CUT or (names and self._dice.happens("cut_list")):
            names = names[: min(_CUT, len(names) // 2 + 1)]
        start, size = int(body.get("pageToken") or 0), int(body.get("pageSize") or 20)
        page = names[start : start + size]
        url = f"http://localhost/files/sessions/{session.number}"
        answer = {
            "files": [{"fileName": name, "url": f"{url}/{name}?X-Goog-Signature=abc"} for name in page],
            "log": session.log_text(),
        }
        return {**answer, "nextPageToken": str(start + size)} if start + size < len(names) else answer

    def _delete(self, body: Body) -> Body:
        self._kernels.delete(self._kernel(body).reference)
        return {}

    def _quota(self, _: Body) -> Body:
        kernels = self._kernels
        running = sum(session.seconds for session in kernels.running() if session.gpu)
        used = kernels.quota.used(kernels.sessions)
        seconds = kernels.quota.refresh_in() + self._settings.clock_offset_seconds
        refresh = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=seconds)
        gpu = {"timeUsed": max(0.0, used - running), "timeReserved": running}
        gpu |= {"totalTimeAllowed": kernels.quota.total_seconds}
        return {
            "quotaRefreshTime": refresh.isoformat(timespec="milliseconds") + "Z",
            "gpuQuota": {name: f"{value:.3f}s" for name, value in gpu.items()},
        }

    def _dataset_status(self, body: Body) -> Body:
        return {"status": self._dataset_of(body).status}

    def _dataset(self, body: Body) -> Body:
        dataset = self._dataset_of(body)
        return {"ref": dataset.reference, "currentVersionNumber": len(dataset.versions)}

    def _dataset_files(self, body: Body) -> Body:
        dataset = self._dataset_of(body)
        folder = self._datasets.content(dataset.reference)
        names = list(files_below(folder)) if folder else []
        start, size = int(body.get("pageToken") or 0), int(body.get("pageSize") or 20)
        files = [{"name": name, "totalBytes": (folder / name).stat().st_size} for name in names[start : start + size]]
        answer: Body = {"datasetFiles": files}
        return {**answer, "nextPageToken": str(start + size)} if start + size < len(names) else answer

    def _create_dataset(self, body: Body) -> Body:
        return self._save(f"{body.get('ownerSlug')}/{body.get('slug')}", body, is_new=True)

    def _create_version(self, body: Body) -> Body:
        return self._save(f"{body['ownerSlug']}/{body['datasetSlug']}", body.get("body") or {}, is_new=False)

    def _save(self, reference: str, body: Body, *, is_new: bool) -> Body:
        if reference.partition("/")[0] != self._settings.user:
            raise ApiError(403, "Permission 'datasets.update' was denied")
        try:
            self._datasets.save(
                reference, body.get("files") or [], is_new=is_new, delete_old=body.get("deleteOldVersions", False)
            )
        except (KeyError, BusyError):
            raise ApiError(403, "Forbidden") from None
        except ValueError as error:
            return {"status": "error", "error": str(error)}
        return {"ref": reference, "url": f"https://www.kaggle.com/datasets/{reference}", "status": "ok"}

    def _delete_dataset(self, body: Body) -> Body:
        del self._datasets.datasets[self._dataset_of(body).reference]
        return {}

    def _start_upload(self, body: Body) -> Body:
        token = self._datasets.start_upload(body)
        return {"token": token, "createUrl": f"http://localhost/upload/{token}?X-Goog-Signature=abc"}

    def _kernel(self, body: Body) -> Kernel:
        """Return a kernel. One that does not exist is forbidden: Kaggle does not tell what is private."""
        kernel = self._kernels.kernels.get(f"{body.get('userName')}/{body.get('kernelSlug')}")
        if kernel is None:
            raise ApiError(403, "Permission 'kernels.get' was denied")
        return kernel

    def _dataset_of(self, body: Body) -> Dataset:
        dataset = self._datasets.datasets.get(f"{body.get('ownerSlug')}/{body.get('datasetSlug')}")
        if dataset is None:
            raise ApiError(403, "Permission 'datasets.get' was denied")
        return dataset


def files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of the regular files below a folder, relative to it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path.relative_to(folder).as_posix()
