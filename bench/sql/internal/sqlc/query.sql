-- name: CreateAuthor :one
INSERT INTO authors (name) VALUES ($1) RETURNING *;

-- name: GetAuthor :one
SELECT * FROM authors WHERE id = $1;

-- name: ListAuthors :many
SELECT * FROM authors ORDER BY id;

-- name: DeleteAuthor :exec
DELETE FROM authors WHERE id = $1;
