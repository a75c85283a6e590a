"""Directory markers on servers that keep keys as folders (seen on SeaweedFS 4.48).

* User metadata of ``dir/`` is dropped and so are its bytes; its content type is kept. So user metadata also travels there, as
  ``TYPE; sessionfs="mode=040755&..."``, until a probe saw that the server keeps it.
* A folder that exists only because of its children answers HEAD as an empty object whose ETag ends in ``-0``, and fails ``If-None-Match``;
  it is never listed, and that is what counts.
* A folder that was left empty fails ``If-None-Match`` for the file of its name until the server tidies up or its key is deleted.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import replace

from sessionfs.stores.base import ObjectMetadata, ObjectStat

_PARAMETER = '; sessionfs="'


def marker_metadata(metadata: ObjectMetadata) -> ObjectMetadata:
    """Give a marker's metadata with the user's part in the content type too."""
    if not metadata.user:
        return metadata
    carried = urllib.parse.urlencode(metadata.user)
    return replace(metadata, content_type=f'{metadata.content_type}{_PARAMETER}{carried}"')


def plain_metadata(metadata: ObjectMetadata) -> ObjectMetadata:
    """Give the metadata that `marker_metadata` was given."""
    content_type, parameter, carried = metadata.content_type.partition(_PARAMETER)
    if not parameter:
        return metadata
    user = dict(urllib.parse.parse_qsl(carried.removesuffix('"'), keep_blank_values=True))
    return replace(metadata, user=user, content_type=content_type)


def may_be_implied(stat: ObjectStat) -> bool:
    """Whether a marker may be no object but a folder that its children imply; a listing decides."""
    return stat.key.endswith("/") and stat.size_bytes == 0 and stat.token.endswith("-0")
